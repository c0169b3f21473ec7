"""`nestfl run`: the app in a simulation, from the overrides to the exit code."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

from rich.console import Console

from nestfl import failure
from nestfl.display import display_on
from nestfl.launcher import LaunchError, Simulation, check_app, flower_run
from nestfl.progress import Follower, RunState
from nestfl.stopping import Stopped, StopRequest, stop_request
from server_app.files import PROGRESS_FILE, SUMMARY_FILE, new_names

APP_DIR = Path(__file__).resolve().parents[1]
LOG_FILE = "flower.log"


@dataclass(frozen=True)
class Choice:
    """What the launcher has to know of a configuration."""

    nodes: int
    output: str = "runs"
    """The folder of run directories."""
    name: str | None = None
    """The run directory's name there; the time and the label if not given."""
    label: str = "run"


@dataclass(frozen=True)
class Request:
    """What was typed."""

    overrides: Sequence[str] = ()
    nodes: int | None = None
    cpus_per_client: int = 1
    gpus_per_client: float = 0.0
    workers: int | None = None
    run_dir: Path | None = None
    resume: Path | None = None
    quiet: bool = False
    app_dir: Path = APP_DIR

    def hydra(self) -> str:
        """The overrides as one string, which `shlex.split` takes apart again."""
        from server_app.config import seen_from  # not for --help

        typed = [text for text in self.overrides if not text.startswith("resume=")]
        overrides = seen_from(Path.cwd(), typed)
        if (resume := self.resume_path()) is not None:
            overrides.append(f"resume={resume}")
        return " ".join(map(_quoted, overrides))

    def resume_path(self) -> Path | None:
        """Where to go on from; absolute, since the server has another working directory."""
        typed = [text.partition("=")[2] for text in self.overrides if text.startswith("resume=")]
        path = self.resume or (Path(typed[-1]) if typed else None)
        return path.expanduser().absolute() if path is not None else None


def choose(overrides: str) -> Choice:
    """Compose the configuration here, to know at once whether it is right."""
    from server_app.config import compose  # not for --help

    config = compose(overrides)
    return Choice(config.fleet.clients, config.output, config.name, config.label)


def show_summary(run_dir: Path, console: Console) -> None:
    """The table of the levels, and where everything is."""
    from server_app.record import RunRecord
    from server_app.summary import show

    record = RunRecord(run_dir)
    show(record, json.loads(record.summary_file.read_text()), console)


def run(
    request: Request,
    choose: Callable[[str], Choice] = choose,
    show: Callable[[Path, Console], None] = show_summary,
) -> int:
    """Run the app and return the exit code: 0 only if it has written its summary."""
    console, errors = Console(), Console(stderr=True)
    try:
        check_app(request.app_dir)
        choice = choose(request.hydra())
        run_dir, log = _places(request, choice)
        simulation = Simulation(
            request.nodes if request.nodes is not None else choice.nodes,
            request.cpus_per_client,
            request.gpus_per_client,
            request.workers,
        )
    except (ValueError, OSError, LaunchError) as error:
        errors.out(f"nestfl run: {error}", highlight=False)
        return 2
    if not request.quiet:
        console.out(f"{simulation.nodes} simulated clients, run in {run_dir}", highlight=False)
    code = _Run(request, run_dir, log, simulation, console, errors).finish()
    if code == 0:
        show(run_dir, console)
    return code


@dataclass
class _Run:
    request: Request
    run_dir: Path
    log: Path
    simulation: Simulation
    console: Console
    errors: Console

    def finish(self) -> int:
        (self.run_dir / PROGRESS_FILE).unlink(missing_ok=True)
        follower = Follower(self.run_dir)
        summary = _version(self.run_dir / SUMMARY_FILE)
        logged = self.log.stat().st_size if self.log.exists() else 0
        try:
            with stop_request() as stop, self._log_kept():
                self._follow(follower, stop)
        except Stopped as stopped:
            self._say_stopped(follower.state)
            return stopped.exit_code
        except (LaunchError, OSError) as error:
            self.errors.out(f"nestfl run: {error}", highlight=False)
            return 1
        state = follower.state
        if state.reason is not None or _version(self.run_dir / SUMMARY_FILE) == summary:
            self._say_failed(state, logged)
            return 1
        return 0

    def _follow(self, follower: Follower, stop: StopRequest) -> None:
        config: dict[str, str | bool] = {
            "hydra": self.request.hydra(),
            "run-dir": str(self.run_dir),
        }
        with (
            display_on(self.console, self.request.quiet) as display,
            flower_run(
                self.request.app_dir, config, self.simulation, self.log, stop.check
            ) as flower,
        ):
            follower.follow(display, lambda: _is_running(flower, stop))

    @contextmanager
    def _log_kept(self) -> Iterator[None]:
        """Afterwards the log is in the run's directory, if the server has come to make it."""
        try:
            yield
        finally:
            if self.run_dir.is_dir():
                self.log = self.log.replace(self.run_dir / LOG_FILE)

    def _say_failed(self, state: RunState, logged: int) -> None:
        """Say why; what the log held before is of the run that this one resumed."""
        log = self.log.read_bytes()[logged:].decode(errors="replace")
        lines = failure.shown(state.reason) if state.reason else failure.reason(log)
        self.errors.out(f"nestfl run: the run failed{_after(state)}", highlight=False)
        for line in [*lines, f"The full log: {self.log}", *_how_to_resume(self.run_dir)]:
            self.errors.out(f"  {line}", highlight=False)

    def _say_stopped(self, state: RunState) -> None:
        hint = _how_to_resume(self.run_dir) or ["No checkpoint was written yet."]
        self.errors.out(f"nestfl run: stopped{_after(state)}. {hint[0]}", highlight=False)


def _is_running(flower: Popen[bytes], stop: StopRequest) -> bool:
    stop.check()
    return flower.poll() is None


def _places(request: Request, choice: Choice) -> tuple[Path, Path]:
    """The run's directory, which a new run's server makes itself, and the log."""
    resume = request.resume_path()
    if resume is not None:
        if request.run_dir is not None:
            raise ValueError("a run goes on in its own directory: leave out --run-dir or --resume")
        from server_app.config import run_directory  # not for --help

        run_dir = run_directory(resume)
        return run_dir, run_dir / LOG_FILE
    output = Path(choice.output).expanduser().absolute()
    if request.run_dir is not None or choice.name is not None:
        given = request.run_dir or output / str(choice.name)
        return _reserve(given.expanduser().absolute())
    for name in new_names(choice.label):
        with suppress(FileExistsError):
            return _reserve(output / name)
    raise AssertionError("unreachable")


def _reserve(run_dir: Path) -> tuple[Path, Path]:
    """Take a name that no other run has, by making its log beside it."""
    log = run_dir.with_name(f"{run_dir.name}.log")
    if run_dir.exists() or log.exists():
        raise FileExistsError(f"{run_dir} exists; give another, or go on with --resume {run_dir}")
    log.parent.mkdir(parents=True, exist_ok=True)
    log.touch(exist_ok=False)
    return run_dir, log


def _how_to_resume(run_dir: Path) -> list[str]:
    checkpoints = sorted(run_dir.rglob("*.safetensors"), key=lambda file: file.stat().st_mtime)
    if not checkpoints:
        return []
    command = shlex.join(["nestfl", "run", "--resume", str(run_dir)])
    return [f"The checkpoint is {checkpoints[-1]}; go on with: {command}"]


def _after(state: RunState) -> str:
    return f" after round {state.round} of {state.rounds or '?'}" if state.round else ""


def _version(file: Path) -> tuple[int, int] | None:
    """Differs whenever the file was written."""
    try:
        return file.stat().st_mtime_ns, file.stat().st_ino
    except FileNotFoundError:
        return None


def _quoted(override: str) -> str:
    needs_quotes = not override or any(c.isspace() or c in "'\"\\" for c in override)
    return shlex.quote(override) if needs_quotes else override
