"""`nestfl run`: the app on an engine, from the overrides to the exit code."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from nestfl.launching.flower import LaunchError, Simulation, check_app
from nestfl.launching.gpus import (
    cores,
    default_share,
    device_of,
    free_memory_of_gpus,
    training_memory,
)
from nestfl.launching.launched_run import Run
from nestfl.launching.ray_run import RayRun
from server_app.record.files import LAUNCHER_LOCK, RECORD_LOCK, claim, new_directory
from server_app.record.locking import PATIENCE, Lock

APP_DIR = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Choice:
    """The part of a configuration that the launcher has to know."""

    nodes: int
    output: str = "runs"
    """The folder of run directories."""
    name: str | None = None
    """The run directory's name there; the time and the label if not given."""
    label: str = "run"
    device: str = "auto"
    """The device that clients train on."""
    memory: Callable[[], int] = lambda: 0
    """Counts the bytes that a client takes of a GPU, which is slow."""
    engine: str = "ray"
    found: Sequence[str] = ()
    """What the run would start from, in lines."""


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
    """Files and packages of the user's own, which are loaded already."""
    check: bool = False
    """Whether to stop when all is checked that the run would start from."""
    quiet: bool = False
    app_dir: Path = APP_DIR

    def hydra(self) -> str:
        """Return the overrides as one string, which `shlex.split` takes apart again."""
        from server_app.config.composing import with_absolute_paths  # not for --help

        typed = [text for text in self.overrides if not text.startswith("resume=")]
        overrides = with_absolute_paths(Path.cwd(), typed)
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
        typed = [text.partition("=")[2] for text in self.overrides if text.startswith("resume=")]
        path = self.resume or (Path(typed[-1]) if typed else None)
        return path.expanduser().absolute() if path is not None else None


def choose(overrides: str, nodes: int | None = None) -> Choice:
    """Compose the configuration and check what it starts from, to know at once what is wrong."""
    from server_app.checking import check  # not for --help
    from server_app.config.composing import compose

    config = compose(overrides)
    found = check(config, nodes).lines()
    return Choice(
        config.fleet.clients,
        config.output,
        config.name,
        config.label,
        config.train.device,
        lambda: training_memory(config),
        config.engine,
        found,
    )


def show_summary(run_dir: Path, console: Console) -> None:
    """Print the table of the levels, and where everything is."""
    from server_app.record.run_record import RunRecord
    from server_app.record.summary import show

    record = RunRecord(run_dir)
    show(record, json.loads(record.summary_file.read_text()), console)


def run(
    request: Request,
    choose: Callable[[str, int | None], Choice] = choose,
    show: Callable[[Path, Console], None] = show_summary,
    find_gpus: Callable[[], list[int]] = free_memory_of_gpus,
) -> int:
    """Run the app and return the exit code: 0 only if it has written its summary."""
    console, errors = Console(), Console(stderr=True)
    with ExitStack() as held:
        try:
            choice = choose(request.hydra(), request.nodes)
            _check_engine(request, choice.engine)
            simulation = simulation_of(request, choice, find_gpus)
            clients = _clients(choice, simulation)
            if request.check:
                for line in (*choice.found, f"device:  {clients}"):
                    console.out(line, highlight=False)
                return 0
            run_dir = _run_dir(request, choice)
            held.enter_context(closing(Lock(run_dir / LAUNCHER_LOCK)))
            goes_on = _check_start(request.resume_path(), run_dir)
        except (ValueError, OSError, LaunchError) as error:
            errors.out(f"nestfl run: {error}", highlight=False)
            return 2
        if not request.quiet:
            console.out(f"{clients}, run in {run_dir}{goes_on}", highlight=False)
        launched = _on_ray if choice.engine == "ray" else _on_the_local_engine
        code = launched(request, simulation, run_dir, console, errors).finish()
        if code == 0 and choice.engine == "ray":  # else the ServerApp has shown it here
            show(run_dir, console)
        return code


def _check_engine(request: Request, engine: str) -> None:
    """Raise where the engine cannot be started, or has no use for an option that was given."""
    if engine == "ray":
        check_app(request.app_dir)
    elif request.workers is not None or request.gpus_per_client is not None:
        raise ValueError(
            "--workers and --gpus-per-client are for engine=ray: the local engine runs one client "
            "at a time, on train.device; leave them out"
        )


def _clients(choice: Choice, simulation: Simulation) -> str:
    """Say how many clients there are, and what they train on."""
    if choice.engine == "ray":
        device = device_of(choice.device, simulation.gpus_per_client)
        return f"{simulation.nodes} simulated clients on {device}"
    from training.devices import choose_device  # not for --help

    device = str(choose_device(choice.device))  # type: ignore[arg-type]
    return f"{simulation.nodes} clients in this process on {device}"


def _on_ray(
    request: Request, simulation: Simulation, run_dir: Path, console: Console, errors: Console
) -> Run:
    return RayRun(
        app_dir=request.app_dir,
        run_dir=run_dir,
        overrides=request.hydra(),
        command=request.command(),
        resume=request.resume_path(),
        simulation=simulation,
        console=console,
        errors=errors,
        quiet=request.quiet,
    )


def _on_the_local_engine(
    request: Request, simulation: Simulation, run_dir: Path, console: Console, errors: Console
) -> Run:
    from nestfl.launching.local_run import LocalRun  # not for --help

    return LocalRun(
        run_dir=run_dir,
        overrides=request.hydra(),
        command=request.command(),
        nodes=simulation.nodes,
        cpus_per_client=simulation.cpus_per_client,
        console=console,
        errors=errors,
        quiet=request.quiet,
    )


def simulation_of(
    request: Request, choice: Choice, find_gpus: Callable[[], list[int]] = free_memory_of_gpus
) -> Simulation:
    """Return the nodes that an engine runs, and what each takes of this machine."""
    nodes = request.nodes if request.nodes is not None else choice.nodes
    if choice.engine == "local":
        return Simulation(nodes, request.cpus_per_client)
    share = request.gpus_per_client
    if share is None:
        at_once = min(nodes, request.workers or max(1, cores() // request.cpus_per_client))
        share = default_share(choice.device, find_gpus, choice.memory, at_once)
    return Simulation(nodes, request.cpus_per_client, share, request.workers)


def _run_dir(request: Request, choice: Choice) -> Path:
    """Make a new run's directory, or return that of the run that goes on."""
    resume = request.resume_path()
    if resume is not None:
        if request.run_dir is not None:
            raise ValueError("a run goes on in its own directory: leave out --run-dir or --resume")
        from server_app.config.saved import run_directory  # not for --help

        return run_directory(resume)
    if request.run_dir is not None:
        return claim(request.run_dir.expanduser().absolute())
    return new_directory(Path(choice.output).expanduser().absolute(), choice.name, choice.label)


def _check_start(resume: Path | None, run_dir: Path) -> str:
    """Say what a run goes on after; raise where it cannot, before anything is started."""
    Lock(run_dir / RECORD_LOCK, PATIENCE).close()  # a killed run's server may take a while to end
    if resume is None:
        return ""
    from server_app.record.checkpoint import load  # not for --help

    return f", going on after round {load(resume).round}"


def _quoted(override: str) -> str:
    needs_quotes = not override or any(c.isspace() or c in "'\"\\" for c in override)
    return shlex.quote(override) if needs_quotes else override
