"""`nestfl run`: runs the app on an engine, from the overrides to the exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import plugins
from data.ranges import Range
from nestfl.commands.group import app
from nestfl.commands.shared_options import CLIENT_COUNT, FILE, THREAD_COUNT, number, plugin_option
from nestfl.commands.takes_overrides import TakesOverrides

if TYPE_CHECKING:
    from rich.console import Console

    from nestfl.launching.request import Choice, Request


@app.command(
    "run",
    cls=TakesOverrides,
    epilog="""\b
    Examples:
      nestfl run
      nestfl run strategy=heterofl model=resnet56 rounds=50 train.lr=0.05
      nestfl run fleet=small dataset=cifar10 dataset.path=cifar --workers 2
      nestfl run --resume runs/20260131-120000-scalefl-resnet20-digits rounds=100
      nestfl run engine=local rounds=2
      nestfl run --plugin mine.py model=twin strategy=heterofl

    A wrong key or choice is answered with those that there are; conf/ holds them all.""",
)
@click.argument(
    "overrides",
    nargs=-1,
    metavar="[KEY=VALUE]...",
    help="Settings that differ from conf/, such as strategy=heterofl or train.lr=0.05.",
)
@click.option(
    "--nodes",
    metavar="N",
    type=CLIENT_COUNT,
    help="Simulated clients; those of the fleet if not given.",
)
@click.option(
    "--cpus-per-client",
    metavar="N",
    type=THREAD_COUNT,
    default=1,
    help="Cores that a client takes.",
)
@click.option(
    "--gpus-per-client",
    metavar="SHARE",
    type=number(Range(0, 1024)),
    help="Share of a GPU that a client takes; by what training needs if not given.",
)
@click.option(
    "--workers",
    metavar="N",
    type=THREAD_COUNT,
    help="Clients at a time; as many as there are cores if not given.",
)
@click.option(
    "--run-dir",
    metavar="FOLDER",
    type=FILE,
    help="Where the run's record goes; a new folder in runs/ if not given.",
)
@click.option(
    "--resume", metavar="RUN", type=FILE, help="A run directory or a checkpoint to go on from."
)
@plugin_option(expose=True, load=False)
@click.option("--check", is_flag=True, help="Check all that the run would start from, and stop.")
@click.option("--quiet", is_flag=True, help="Show only how it ended.")
def run_command(**request: Any) -> None:
    """Train in a simulation on this machine."""
    from nestfl.launching.request import Request

    raise SystemExit(run(Request(**request)))


def run(request: Request) -> int:
    """Run the app and return the exit code: 0 only if it has written its summary."""
    from rich.console import Console

    from nestfl.launching.app_copy import usable_cache

    with usable_cache():
        return _run(request, Console(), Console(stderr=True))


def _run(request: Request, console: Console, errors: Console) -> int:
    from nestfl.launching.flower import LaunchError
    from nestfl.launching.request import choose
    from nestfl.launching.stopping import Stopped
    from nestfl.watching.log_colours import colour_for_terminals

    try:
        request.check_paths()
        if request.check:
            colour_for_terminals()
            for line in choose(request)[-1].found:
                console.out(line, highlight=False)
            return 0
        code = None if request.engine == "local" else _on_ray(request, console, errors)
        return _on_the_local_engine(request, console, errors) if code is None else code
    except (ValueError, OSError, LaunchError) as error:
        errors.out(f"nestfl run: {plugins.told(error)}", highlight=False)
        return 2
    except Stopped as stopped:
        errors.out("nestfl run: stopped. No checkpoint was written yet.", highlight=False)
        return stopped.exit_code


def _on_ray(request: Request, console: Console, errors: Console) -> int | None:
    """Run the app in a simulation; return None if its configuration asks for the other engine."""
    from nestfl.launching.flower import check_app, flower
    from nestfl.launching.ray_cluster import require_cluster
    from nestfl.launching.ray_run import RayRun
    from nestfl.launching.stopping import stop_request

    check_app(request.app_dir)
    with stop_request() as stop, flower(request) as first:
        answer = first.answer(stop.check)
        if answer.error is not None or answer.choice is None:
            raise ValueError(answer.error)
        if answer.choice.engine != "ray":
            return None
        require_cluster()
        with run_directory_of(request, answer.choice) as run_dir:
            _say_where(request, answer.choice, run_dir, console)
            code = RayRun(
                run_dir=run_dir,
                command=request.command(),
                console=console,
                errors=errors,
                quiet=request.quiet,
                request=request,
                flower=first,
                remembers=answer.choice.remembers,
                stop=stop,
            ).finish()
            if code == 0:
                _show_summary(run_dir, console)
            return code


def _on_the_local_engine(request: Request, console: Console, errors: Console) -> int:
    """Run the app in this process, which prints its summary itself."""
    from nestfl.launching.local_run import LocalRun
    from nestfl.launching.request import choose
    from nestfl.watching.log_colours import colour_for_terminals

    colour_for_terminals()
    checked, simulation, choice = choose(request)
    with run_directory_of(request, choice) as run_dir:
        _say_where(request, choice, run_dir, console)
        return LocalRun(
            run_dir=run_dir,
            command=request.command(),
            console=console,
            errors=errors,
            quiet=request.quiet,
            config=checked.config,
            simulation=simulation,
        ).finish()


@contextmanager
def run_directory_of(request: Request, choice: Choice) -> Iterator[Path]:
    """Make a new run's directory, or take a resumed run's; it is locked within the block."""
    from data.homes import with_home
    from server_app.config.saved import run_directory
    from server_app.record.files import (
        LAUNCHER_LOCK,
        PATIENCE,
        RECORD_LOCK,
        Lock,
        claim,
        new_directory,
    )

    resume = request.resume_path()
    if resume is not None and request.run_dir is not None:
        raise ValueError("a run goes on in its own directory: leave out --run-dir or --resume")
    if resume is not None:
        run_dir = run_directory(resume)
    elif request.run_dir is not None:
        run_dir = claim(request.folder / with_home(request.run_dir))
    else:
        output = request.folder / with_home(choice.output)
        run_dir = new_directory(output, choice.name, choice.label)
    lock = Lock(run_dir / LAUNCHER_LOCK)
    try:
        Lock(run_dir / RECORD_LOCK, PATIENCE).close()  # a killed run's server may take time to end
        yield run_dir
    finally:
        lock.close()


def _say_where(request: Request, choice: Choice, run_dir: Path, console: Console) -> None:
    if not request.quiet:
        goes_on = f", going on after round {choice.after}" if choice.after is not None else ""
        console.out(f"{choice.clients}, run in {run_dir}{goes_on}", highlight=False)


def _show_summary(run_dir: Path, console: Console) -> None:
    """Print the table of the levels, and the paths of the results."""
    from server_app.record.run_record import RunRecord
    from server_app.record.summary import read_summary, show

    record = RunRecord(run_dir)
    show(record, read_summary(record.summary_file), console)
