"""`nestfl compare`: all combinations of settings, fairly, with the table of what they came to."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

import plugins
from data.homes import with_home
from nestfl.comparing.comparison import Comparison
from nestfl.comparing.outcome import Known, Outcome
from nestfl.comparing.result_tables import ResultTable
from nestfl.comparing.results import Target
from nestfl.comparing.run_bars import comparison_display_on
from nestfl.comparing.running import Progress, Slots, run_trials, visible_gpus
from nestfl.comparing.trials import SEED, Trial, comparison_name, expand, same_value
from nestfl.launching.flower import LaunchError
from nestfl.launching.gpus import cores, free_memory_of_gpus
from nestfl.launching.stopping import Stopped, stop_request
from server_app.config.composing import Config, compose_and_tell
from server_app.config.typed import ConfigError
from server_app.record.files import COMPARISON_FILE, LAUNCHER_LOCK, PATIENCE, Lock, make_directory
from server_app.start_checks import check

APP_DIR = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Request:
    """The overrides and options of `nestfl compare`, as typed."""

    overrides: Sequence[str]
    jobs: int | None = None
    baseline: str | None = None
    """As KEY=VALUE: the choice that others are compared to."""
    target: float | None = None
    """The accuracy to reach, as a share."""
    target_score: str = Target.score
    """Which accuracy: one of `TARGETS`."""
    plugin: Sequence[str] = ()
    """Files and packages of the user's own, which are loaded already."""

    def trials(self) -> list[Trial]:
        """Return the runs to compare; on the local engine, unless another is named."""
        named = any(text.startswith("engine=") for text in self.overrides)
        return expand([*([] if named else ["engine=local"]), *self.overrides])

    def command(self) -> list[str]:
        """Return the command that goes on with it."""
        options = {"--jobs": self.jobs, "--baseline": self.baseline, "--target": self.target}
        if self.target_score != Target.score:
            options["--target-score"] = self.target_score
        given = [(name, str(value)) for name, value in options.items() if value is not None]
        given += [("--plugin", place) for place in self.plugin]
        return ["nestfl", "compare", *self.overrides, *(text for each in given for text in each)]


def compare(request: Request) -> int:
    """Run what has not run yet, show the table, and return the exit code."""
    console, errors = Console(), Console(stderr=True)
    with ExitStack() as held:
        try:
            trials = request.trials()
            baseline = _baseline(request, trials)
            comparison = _comparison(trials)
            slots = _slots(request, comparison.configs[0])
            held.enter_context(closing(Lock(comparison.folder / LAUNCHER_LOCK, PATIENCE)))
            comparison.check_runs()
            comparison.results()  # of earlier runs: a damaged record is told before others start
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
    """Compose all configurations, to know at once whether they are right, and make the folder."""
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
    """Check what runs start from, before the first of them: once for all that differ by chance."""
    seen = set()
    for trial, config in zip(trials, configs, strict=True):
        alike = repr(replace(config, seed=0, dataset=replace(config.dataset, seed=0)))
        if alike not in seen:
            seen.add(alike)
            try:
                check(config)
            except Exception as error:  # a user's own code may raise anything
                if not isinstance(error, ValueError) and not plugins.where_in_plugins(error):
                    raise
                raise ConfigError(f"{trial}: {plugins.told(error)}") from error


def _baseline(request: Request, trials: Sequence[Trial]) -> Mapping[str, str]:
    """Return the choice that others are compared to: the first strategy, or else the first one."""
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
    """Return how many runs there are at a time: by the cores, the GPUs, or as asked for."""
    wants_gpu = config.train.device in ("auto", "cuda")
    gpus = visible_gpus(len(free_memory_of_gpus())) if wants_gpu else ()
    if config.engine == "ray":
        jobs = request.jobs or 1
        return Slots(jobs, workers=max(1, cores() // jobs))
    return Slots(request.jobs or len(gpus) or cores(), gpus)


def _run(
    comparison: Comparison, slots: Slots, request: Request, console: Console, errors: Console
) -> int:
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
            progress = run_trials(comparison, slots, display, stop, APP_DIR)
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
