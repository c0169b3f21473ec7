"""What `nestfl run` was asked for, and what is chosen by it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import plugins
from data.homes import with_home
from nestfl.bundle import APP
from nestfl.launching.gpus import (
    cores,
    default_share,
    device_of,
    free_memory_of_gpus,
    training_memory,
)
from nestfl.launching.ray_cluster import cluster
from server_app.config.saved import run_directory
from server_app.record.files import require_free
from server_app.report.amounts import counted

if TYPE_CHECKING:  # not for --help
    from server_app.config.composing import Config
    from server_app.start_checks import Checked

PATHS = ("dataset.path", "strategy.unlabelled.path")
"""Keys whose values are paths, and nothing else."""
MAYBE_PATHS = ("model.weights", "dataset.tokenizer")
"""Keys whose values are paths, or names of what is published or installed."""
BEGINNINGS = ("/", "./", "../", "~")
"""Of paths that are no names."""


@dataclass(frozen=True)
class Simulation:
    """The number of simulated nodes, and the part of this machine that each takes."""

    nodes: int
    cpus_per_client: int = 1
    gpus_per_client: float = 0.0
    workers: int | None = None
    """Clients at a time; as many as the machine has room for if not given."""

    def backend(self) -> dict[str, dict[str, float]]:
        """Return what Flower's simulation engine is to know of it."""
        client = {"num_cpus": self.cpus_per_client, "num_gpus": float(self.gpus_per_client)}
        cores = {} if self.cpus is None else {"num_cpus": float(self.cpus)}
        return {"client_resources": client, "init_args": cores}

    @property
    def cpus(self) -> int | None:
        """The cores that Ray is to have; None is all of them, where nobody names the workers."""
        return None if self.workers is None else self.workers * self.cpus_per_client


@dataclass(frozen=True)
class Request:
    """The overrides and options of `nestfl run`, as typed."""

    overrides: Sequence[str] = ()
    nodes: int | None = None
    cpus_per_client: int = 1
    gpus_per_client: float | None = None
    """A share of a GPU; by what training takes if not given."""
    workers: int | None = None
    run_dir: Path | None = None
    resume: Path | None = None
    plugin: Sequence[str] = ()
    """Files and packages of the user's own, or names of installed ones."""
    check: bool = False
    """Whether to stop when all is checked that the run would start from."""
    quiet: bool = False
    app_dir: Path = APP
    folder: Path = field(default_factory=Path.cwd)
    """Where it was typed, which relative paths are relative to."""

    def hydra(self) -> str:
        """Return the overrides as one string, which `shlex.split` takes apart again."""
        from server_app.config.overrides import with_absolute_paths  # not for --help

        typed = [text for text in self.overrides if not text.startswith("resume=")]
        overrides = with_absolute_paths(self.folder, typed)
        if (resume := self.resume_path()) is not None:
            overrides.append(f"resume={resume}")
        return " ".join(map(_quoted, overrides))

    def command(self) -> str:
        """Return the command that repeats the run, in a directory of its own."""
        options = {
            "--nodes": self.nodes,
            "--cpus-per-client": self.cpus_per_client if self.cpus_per_client != 1 else None,
            "--gpus-per-client": self.gpus_per_client,
            "--workers": self.workers,
            "--resume": self.resume,
        }
        given = [(name, str(value)) for name, value in options.items() if value is not None]
        given += [("--plugin", place) for place in self.plugin]
        return shlex.join(["nestfl", "run", *self.overrides, *(x for each in given for x in each)])

    def resume_path(self) -> Path | None:
        """Return the absolute path to go on from: the server has another working directory."""
        path = self.resume or self._typed("resume")
        return self._absolute(str(path)) if path is not None else None

    @property
    def engine(self) -> str | None:
        """The engine that was typed; None leaves it to the configuration."""
        return self._typed("engine")

    def check_paths(self) -> None:
        """Raise for a path that is not there, or is taken, at once: later it takes seconds."""
        for key in (*PATHS, *MAYBE_PATHS):
            typed = self._typed(key)
            if typed is not None and not typed.strip():
                raise ValueError(f"{key} is empty: expected a path")
            typed = typed or "null"
            is_path = key in PATHS or typed.startswith(BEGINNINGS)
            if typed != "null" and is_path and not (path := self._absolute(typed)).exists():
                raise ValueError(f"{key}: {path} does not exist")
        if (resume := self.resume_path()) is not None:
            run_directory(resume)
        elif self.run_dir is not None:
            require_free(self._absolute(str(self.run_dir)))

    def _typed(self, key: str) -> str | None:
        """Return the value of a key that was typed last."""
        typed = [text.partition("=")[2] for text in self.overrides if text.startswith(f"{key}=")]
        return typed[-1] if typed else None

    def _absolute(self, path: str) -> Path:
        return self.folder / with_home(path)


@dataclass(frozen=True)
class Choice:
    """The part of a checked configuration that the launcher has to know."""

    nodes: int
    output: str = "runs"
    """The folder of run directories."""
    name: str | None = None
    """The run directory's name there; the time and the label if not given."""
    label: str = "run"
    engine: str = "ray"
    clients: str = ""
    """How many they are, and what they train on, in words."""
    after: int | None = None
    """The round that the run goes on after."""
    remembers: bool = False
    """Whether its clients keep something from one of their rounds to the next."""
    found: Sequence[str] = ()
    """What the run would start from, in lines."""


def choose(
    request: Request, find_gpus: Callable[[], list[int]] = free_memory_of_gpus
) -> tuple[Checked, Simulation, Choice]:
    """Compose the configuration and check all that it starts from, to know at once what is wrong.

    Nothing is started and nothing written, but what is found is kept in the cache.
    """
    from server_app.config.composing import compose_and_tell
    from server_app.start_checks import check  # not for --help

    plugins.search_installed_too()
    for place in request.plugin:
        plugins.load(place, request.folder)
    config, notes = compose_and_tell(request.hydra())
    _check_options(request, config.engine)
    checked = check(config, request.nodes)
    simulation = simulation_of(request, config, find_gpus)
    clients = ", ".join([_clients(config, simulation), *notes])
    choice = Choice(
        simulation.nodes,
        config.output,
        config.name,
        config.label,
        config.engine,
        clients,
        checked.start.round if checked.start else None,
        config.strategy.remembers,
        [*checked.lines(), f"device:  {clients}"],
    )
    return checked, simulation, choice


def simulation_of(
    request: Request, config: Config, find_gpus: Callable[[], list[int]] = free_memory_of_gpus
) -> Simulation:
    """Return the nodes that an engine runs, and what each takes of this machine."""
    nodes = request.nodes if request.nodes is not None else config.fleet.clients
    if config.engine == "local":
        return Simulation(nodes, request.cpus_per_client)
    share = request.gpus_per_client
    if share is None:
        at_once = min(nodes, request.workers or max(1, cores() // request.cpus_per_client))
        device = config.train.device
        share = default_share(device, find_gpus, lambda: training_memory(config), at_once)
    return Simulation(nodes, request.cpus_per_client, share, request.workers)


def _check_options(request: Request, engine: str) -> None:
    """Raise where the engine has no use for an option that was given."""
    if engine == "local" and (request.workers is not None or request.gpus_per_client is not None):
        raise ValueError(
            "--workers and --gpus-per-client are for engine=ray: the local engine runs one client "
            "at a time, on train.device; leave them out"
        )
    if engine == "ray" and cluster() and request.workers is not None:
        raise ValueError(
            f"--workers is for a Ray of the run's own: the cluster at RAY_ADDRESS={cluster()} runs "
            "as many clients as it has room for; leave it out, or give --cpus-per-client"
        )


def _clients(config: Config, simulation: Simulation) -> str:
    """Say how many clients there are, and what they train on."""
    if config.engine == "ray":
        device = device_of(config.train.device, simulation.gpus_per_client)
        return f"{counted(simulation.nodes, 'simulated client')} on {device}"
    from training.devices import choose_device  # not for --help

    device = str(choose_device(config.train.device))
    return f"{counted(simulation.nodes, 'client')} in this process on {device}"


def _quoted(override: str) -> str:
    needs_quotes = not override or any(c.isspace() or c in "'\"\\" for c in override)
    return shlex.quote(override) if needs_quotes else override
