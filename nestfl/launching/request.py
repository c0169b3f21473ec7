"""Checks a request of `nestfl run` and chooses its engine, nodes and resources."""

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
"""Keys whose values are always paths."""
MAYBE_PATHS = ("model.weights", "dataset.tokenizer")
"""Keys whose values are paths, or names of published or installed things."""
BEGINNINGS = ("/", "./", "../", "~")
"""Beginnings by which a path is told from a name."""


@dataclass(frozen=True)
class Simulation:
    """The number of simulated nodes, and the part of this machine that each takes."""

    nodes: int
    cpus_per_client: int = 1
    gpus_per_client: float = 0.0
    workers: int | None = None
    """Clients at a time; default (None): as many as the machine has room for."""

    def backend(self) -> dict[str, dict[str, float]]:
        """Return the settings for Flower's simulation engine."""
        client = {"num_cpus": self.cpus_per_client, "num_gpus": float(self.gpus_per_client)}
        cores = {} if self.cpus is None else {"num_cpus": float(self.cpus)}
        return {"client_resources": client, "init_args": cores}

    @property
    def cpus(self) -> int | None:
        """Cores for Ray; None for all cores, if the number of workers is not given."""
        return None if self.workers is None else self.workers * self.cpus_per_client


@dataclass(frozen=True)
class Request:
    """The overrides and options of `nestfl run`, as typed."""

    overrides: Sequence[str] = ()
    nodes: int | None = None
    cpus_per_client: int = 1
    gpus_per_client: float | None = None
    """Each client's share of a GPU; default (None): by the memory of training."""
    workers: int | None = None
    run_dir: Path | None = None
    resume: Path | None = None
    plugin: Sequence[str] = ()
    """Files and packages of the user's own, or names of installed ones."""
    check: bool = False
    """Stop after the checks of the run's start."""
    quiet: bool = False
    app_dir: Path = APP
    folder: Path = field(default_factory=Path.cwd)
    """Folder where the command was typed; relative paths start there."""

    def hydra(self) -> str:
        """Return the overrides as one string, which `shlex.split` splits again."""
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
        """Return the absolute path to resume from; the server has another working directory."""
        path = self.resume or self._typed("resume")
        return self._absolute(str(path)) if path is not None else None

    @property
    def engine(self) -> str | None:
        """The engine that was typed; None leaves it to the configuration."""
        return self._typed("engine")

    def check_paths(self) -> None:
        """Raise for a missing or taken path at once; the full checks take seconds."""
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
        """Return the last typed value of a key."""
        typed = [text.partition("=")[2] for text in self.overrides if text.startswith(f"{key}=")]
        return typed[-1] if typed else None

    def _absolute(self, path: str) -> Path:
        return self.folder / with_home(path)


@dataclass(frozen=True)
class Choice:
    """The part of a checked configuration that the launcher needs."""

    nodes: int
    output: str = "runs"
    """The folder of run directories."""
    name: str | None = None
    """Name of the run directory there; default (None): the time and the label."""
    label: str = "run"
    engine: str = "ray"
    clients: str = ""
    """The number of clients and their device, in words."""
    after: int | None = None
    """The round after which the run continues."""
    remembers: bool = False
    """True if its clients keep a memory between their rounds."""
    found: Sequence[str] = ()
    """The results of the checks, in lines."""


def choose(
    request: Request, find_gpus: Callable[[], list[int]] = free_memory_of_gpus
) -> tuple[Checked, Simulation, Choice]:
    """Compose the configuration and check the run's start, so that errors appear at once.

    No process is started and no file written, except for results in the cache.
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
    """Return the nodes that an engine runs, and the part of this machine that each takes."""
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
    """Raise if the engine has no use for an option that was given."""
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
    """Return the number of clients and their device, in words."""
    if config.engine == "ray":
        device = device_of(config.train.device, simulation.gpus_per_client)
        return f"{counted(simulation.nodes, 'simulated client')} on {device}"
    from training.devices import choose_device  # not for --help

    device = str(choose_device(config.train.device))
    return f"{counted(simulation.nodes, 'client')} in this process on {device}"


def _quoted(override: str) -> str:
    needs_quotes = not override or any(c.isspace() or c in "'\"\\" for c in override)
    return shlex.quote(override) if needs_quotes else override
