"""`nestfl compare`: runs all combinations of settings on equal terms and prints their results."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

import plugins
from nestfl.commands.group import app
from nestfl.commands.shared_options import A_SHARE, THREAD_COUNT, plugin_option
from nestfl.commands.takes_overrides import TakesOverrides

if TYPE_CHECKING:
    from rich.console import Console

    from nestfl.comparing.comparison import Comparison
    from nestfl.comparing.result_tables import ResultTable
    from nestfl.comparing.running import Progress, Slots
    from nestfl.comparing.trials import Trial
    from server_app.config.composing import Config

TARGET_SCORES = ("mean", "worst", "full model", "cis", "local", "personal")
"""The keys of TARGETS in nestfl/comparing/results.py, which is slow to import."""


@app.command(
    "compare",
    cls=TakesOverrides,
    epilog="""\b
    Examples:
      nestfl compare strategy=scalefl,heterofl,fedavg seed=0,1,2 rounds=30
      nestfl compare experiment=bench_digits strategy=scalefl,heterofl seed=range(0,5)
      nestfl compare strategy=heterofl strategy.dynamic=false,true seed=0,1,2 --target 0.9
      nestfl compare strategy=scalefl,heterofl scalefl.beta=0,0.1 heterofl.dynamic=true seed=0,1,2

    NAME.OPTION is strategy.OPTION for the runs of that strategy alone.

    The same command goes on where it was stopped; one more seed or strategy is added to the runs
    that are there.""",
)
@click.argument(
    "overrides",
    nargs=-1,
    metavar="[KEY=VALUE,VALUE...]...",
    help="Settings that differ from conf/; of those with several values all combinations are run. "
    "NAME.OPTION is for the strategy NAME alone.",
)
@click.option(
    "--jobs",
    metavar="N",
    type=THREAD_COUNT,
    help="Runs at a time; as many as there are GPUs or cores if not given, one on Ray.",
)
@click.option(
    "--baseline",
    metavar="KEY=VALUE",
    help="The choice that the others are compared to; the first strategy if not given.",
)
@click.option(
    "--target",
    metavar="SHARE",
    type=A_SHARE,
    help="Accuracy to reach; if not given one that all have reached, but not below chance.",
)
@click.option(
    "--target-score",
    type=click.Choice(TARGET_SCORES),
    default=TARGET_SCORES[0],
    help="Which accuracy is to reach it: the levels' mean if not given.",
)
@plugin_option(expose=True)
def compare_command(**request: Any) -> None:
    """Run all combinations of settings, and show what can be said of them."""
    raise SystemExit(compare(Request(**request)))


@dataclass(frozen=True)
class Request:
    """The overrides and options of `nestfl compare`, as typed."""

    overrides: Sequence[str]
    jobs: int | None = None
    baseline: str | None = None
    """The choice that others are compared to, as KEY=VALUE."""
    target: float | None = None
    """The accuracy to reach, as a share."""
    target_score: str = TARGET_SCORES[0]
    """Name of the accuracy for the target; one of `TARGETS`."""
    plugin: Sequence[str] = ()
    """The user's own files and packages, which are loaded already."""

    def trials(self) -> list[Trial]:
        """Return the runs to compare, on the local engine unless another one is given."""
        from nestfl.comparing.trials import expand

        named = any(text.startswith("engine=") for text in self.overrides)
        return expand([*([] if named else ["engine=local"]), *self.overrides])

    def command(self) -> list[str]:
        """Return the command that continues the comparison."""
        options = {"--jobs": self.jobs, "--baseline": self.baseline, "--target": self.target}
        if self.target_score != TARGET_SCORES[0]:
            options["--target-score"] = self.target_score
        given = [(name, str(value)) for name, value in options.items() if value is not None]
        given += [("--plugin", place) for place in self.plugin]
        return ["nestfl", "compare", *self.overrides, *(text for each in given for text in each)]


def compare(request: Request) -> int:
    """Run the unfinished trials, print the tables, and return the exit code."""
    from rich.console import Console

    from nestfl.comparing.outcome import Known, Outcome
    from nestfl.comparing.results import Target
    from nestfl.launching.flower import LaunchError
    from server_app.record.files import LAUNCHER_LOCK, PATIENCE, Lock

    console, errors = Console(), Console(stderr=True)
    with ExitStack() as held:
        try:
            trials = request.trials()
            baseline = _baseline(request, trials)
            comparison = _comparison(trials)
            slots = _slots(request, comparison.configs[0])
            held.enter_context(closing(Lock(comparison.folder / LAUNCHER_LOCK, PATIENCE)))
            comparison.check_runs()
            comparison.results()  # reports a damaged record before others start
            known = Known.of(comparison)
        except (ValueError, OSError, LaunchError) as error:
            errors.out(f"nestfl compare: {plugins.told(error)}", highlight=False)
            return 2
        target = Target(request.target, request.target_score)
        comparison.write(request.command(), baseline, target)
        _show(known.tables, [*comparison.notes, *known.warnings], console)
        code = _run(comparison, slots, request, console, errors)
        outcome = Outcome.of(comparison, baseline, target, known)
        if not outcome.groups:
            return code
        _show(outcome.tables(), outcome.warnings, console)
        for name in outcome.write(comparison):
            console.out(f"{name + ':':13}{comparison.folder / name}", highlight=False)
        return code


def _comparison(trials: Sequence[Trial]) -> Comparison:
    """Compose all configurations, so that errors appear at once, and make the folder."""
    from data.homes import with_home
    from nestfl.comparing.comparison import Comparison
    from nestfl.comparing.trials import comparison_name
    from server_app.config.composing import Config, compose_and_tell
    from server_app.config.typed import ConfigError
    from server_app.record.files import COMPARISON_FILE, make_directory

    configs, told = list[Config](), dict[str, None]()
    for trial in trials:
        try:
            config, notes = compose_and_tell(trial.overrides)
            configs.append(config)
            told.update(dict.fromkeys(notes))
        except ConfigError as error:
            raise ConfigError(f"{trial}: {error}") from error
    first = configs[0]
    folder = with_home(first.output).absolute() / (first.name or comparison_name(trials))
    if folder.is_dir() and any(folder.iterdir()) and not (folder / COMPARISON_FILE).is_file():
        raise ConfigError(f"{folder} is there, and no comparison: give another name=")
    if not folder.is_dir():
        _check(trials, configs)
    make_directory(folder, exist_ok=True)
    return Comparison(folder, trials, configs, tuple(told))


def _check(trials: Sequence[Trial], configs: Sequence[Config]) -> None:
    """Check the start of the runs before the first one, once for runs that differ by seed only."""
    from server_app.config.typed import ConfigError
    from server_app.start_checks import check

    seen = set()
    for trial, config in zip(trials, configs, strict=True):
        alike = repr(replace(config, seed=0, dataset=replace(config.dataset, seed=0)))
        if alike not in seen:
            seen.add(alike)
            try:
                check(config)
            except Exception as error:  # a user's own code may raise any error
                if not isinstance(error, ValueError) and not plugins.where_in_plugins(error):
                    raise
                raise ConfigError(f"{trial}: {plugins.told(error)}") from error


def _baseline(request: Request, trials: Sequence[Trial]) -> Mapping[str, str]:
    """Return the choice that others are compared to: the first strategy, or the first value."""
    from nestfl.comparing.trials import SEED, same_value
    from server_app.config.typed import ConfigError

    offered: dict[str, list[str]] = {}
    for trial in trials:
        for key, value in trial.group.items():
            offered.setdefault(key, [])
            if value not in offered[key]:
                offered[key].append(value)
    if request.baseline is None:
        first = "strategy" if "strategy" in offered else next(iter(offered), None)
        return {} if first is None else {first: offered[first][0]}
    key, _, value = request.baseline.partition("=")
    chosen = next((each for each in offered.get(key, []) if same_value(each, value)), None)
    if chosen is None:
        choices = [f"{name}={each}" for name, values in offered.items() for each in values]
        raise ConfigError(
            f"--baseline {request.baseline}: expected one of the choices that are compared: "
            f"{', '.join(choices) or f'none, {SEED} alone has several values'}"
        )
    strategy, _, option = key.partition(".")
    own = {"strategy": strategy} if option and strategy in offered.get("strategy", []) else {}
    return own | {key: chosen}


def _slots(request: Request, config: Config) -> Slots:
    """Return the number of runs at a time: by the cores, the GPUs, or as asked for."""
    from nestfl.comparing.running import Slots, visible_gpus
    from nestfl.launching.gpus import cores, free_memory_of_gpus

    wants_gpu = config.train.device in ("auto", "cuda")
    gpus = visible_gpus(len(free_memory_of_gpus())) if wants_gpu else ()
    if config.engine == "ray":
        jobs = request.jobs or 1
        return Slots(jobs, workers=max(1, cores() // jobs))
    return Slots(request.jobs or len(gpus) or cores(), gpus)


def _run(
    comparison: Comparison, slots: Slots, request: Request, console: Console, errors: Console
) -> int:
    from nestfl.bundle import APP
    from nestfl.comparing.run_bars import comparison_display_on
    from nestfl.comparing.running import run_trials
    from nestfl.launching.stopping import Stopped, stop_request

    left = comparison.unfinished()
    if not left:
        return 0
    done = len(comparison.trials) - len(left)
    before = f", {done} of which are done" if done else ""
    console.out(
        f"{len(comparison.trials)} runs{before}, {min(slots.jobs, len(left))} at a time, "
        f"in {comparison.folder}",
        highlight=False,
    )
    try:
        with stop_request() as stop, comparison_display_on(console) as display:
            progress = run_trials(comparison, slots, display, stop, APP)
    except Stopped as stopped:
        again = shlex.join(request.command())
        errors.out(f"nestfl compare: stopped. Go on with: {again}", highlight=False)
        return stopped.exit_code
    return _say_failed(comparison, progress, errors)


def _say_failed(comparison: Comparison, progress: Progress, errors: Console) -> int:
    for trial, reason in progress.failed.items():
        errors.out(f"nestfl compare: {trial} failed: {reason}", highlight=False)
        errors.out(f"  Its output: {comparison.log(trial)}", highlight=False)
    return 1 if progress.failed else 0


def _show(tables: Sequence[ResultTable], warnings: Sequence[str], console: Console) -> None:
    for table in tables:
        table.show(console)
    for warning in warnings:
        console.out(f"Warning: {warning}", highlight=False)
