"""A comparison's progress, its remaining time, and the resources of its runs."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from nestfl.comparing.comparison import Comparison
from nestfl.comparing.run_bars import ProgressLines, RunBars
from nestfl.comparing.running import Progress, Running, Slots, visible_gpus
from nestfl.comparing.trials import Trial
from nestfl.watching.progress import RunState
from server_app.config.typed import ConfigError
from server_app.record.files import LAUNCHER_LOCK, Lock

ONE, TWO = Trial({"strategy": "scalefl"}), Trial({"strategy": "fedavg"})


class Left(RunState):
    """A run that knows how long it will take."""

    def __init__(self, seconds: float | None) -> None:
        super().__init__()
        self._seconds = seconds

    def seconds_left(self) -> float | None:
        return self._seconds


class Followed:
    def __init__(self, state: RunState) -> None:
        self.state = state


def running(trial: Trial, left: float | None, took: float = 0.0) -> Running:
    """Return a run that began some time ago."""
    follower = cast(Any, Followed(Left(left)))
    return Running(trial, 0, cast(Any, None), io.BytesIO(), follower, time.monotonic() - took)


def test_nothing_is_known_before_a_run_has_a_round() -> None:
    progress = Progress(total=4, jobs=2, waiting=2, running=[running(ONE, None)])
    assert progress.seconds_left() is None


def test_the_rest_goes_by_the_runs_that_have_ended() -> None:
    """Two under way take 30 and 10 more, four take 100 each: 440 over two slots."""
    under_way = [running(ONE, 30.0), running(TWO, 10.0)]
    progress = Progress(total=8, jobs=2, waiting=4, running=under_way, seconds=[80.0, 120.0])
    assert progress.seconds_left() == pytest.approx(220.0)


def test_the_rest_is_no_less_than_the_longest_run_that_is_under_way() -> None:
    under_way = [running(ONE, 90.0), running(TWO, 10.0)]
    progress = Progress(total=2, jobs=2, running=under_way, seconds=[5.0])
    assert progress.seconds_left() == pytest.approx(90.0)


def test_before_any_has_ended_a_run_takes_what_the_slowest_looks_like() -> None:
    under_way = [running(ONE, 40.0, took=20.0), running(TWO, 10.0, took=20.0)]
    progress = Progress(total=3, jobs=2, waiting=1, running=under_way)
    assert progress.seconds_left() == pytest.approx((40 + 10 + 60) / 2, abs=1.0)


def test_a_run_of_the_local_engine_has_one_thread_and_a_gpu_of_its_own() -> None:
    given = [Slots(3, gpus=("2", "3")).environment(slot) for slot in range(3)]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in given] == ["2", "3", "2"]
    assert all(each["OMP_NUM_THREADS"] == "1" for each in given)
    assert Slots(1, workers=4).environment(0) == {}


def test_each_run_that_ends_is_a_line_where_there_is_no_terminal() -> None:
    text = io.StringIO()
    display = ProgressLines(Console(file=text, width=200))
    progress = Progress(total=3, jobs=1, done=1, waiting=1, seconds=[60.0], failed={TWO: "no disk"})
    progress.losses[ONE] = "loss 0.25"
    display.update(progress, [ONE, TWO])
    assert text.getvalue().splitlines() == [
        "2 of 3 runs, strategy=scalefl finished, loss 0.25, 0:01:00 left",
        "2 of 3 runs, strategy=fedavg failed: no disk, 0:01:00 left",
    ]


def test_the_runs_that_are_under_way_are_a_line_now_and_then() -> None:
    under_way = running(ONE, 42.0)
    under_way.state.rounds, under_way.state.round = 20, 7
    under_way.state.loss = "loss 0.5"
    progress = Progress(total=3, jobs=1, done=1, running=[under_way], seconds=[60.0])
    text = io.StringIO()
    ProgressLines(Console(file=text, width=200), pace=0.0).update(progress, [])
    ProgressLines(Console(file=text, width=200)).update(progress, [])  # a minute has not passed
    assert text.getvalue() == "1 of 3 runs, strategy=scalefl round 7 of 20 loss 0.5, 0:00:42 left\n"


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ("0", "1")),
        ("2,3", ("2", "3")),
        ("GPU-a,GPU-b", ("GPU-a", "GPU-b")),
        ("", ("0", "1")),
    ],
)
def test_gpus_are_called_what_they_are_called_here(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, names: tuple[str, ...]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_gpus(2) == names
    assert visible_gpus(0) == ()


def test_a_terminal_shows_the_runs_that_are_under_way_with_their_rounds() -> None:
    text = io.StringIO()
    console = Console(file=text, width=120, force_terminal=True, color_system=None)
    under_way = running(ONE, 42.0)
    under_way.state.rounds, under_way.state.round = 20, 7
    under_way.state.accuracies, under_way.state.loss = {"1": 0.5}, "loss 0.25"
    with RunBars(console) as bars:
        progress = Progress(total=3, jobs=1, done=1, running=[under_way], seconds=[60.0])
        bars.update(progress, [])
    shown = text.getvalue()
    assert "strategy=scalefl" in shown
    assert "7/20" in shown
    assert "loss 0.25, accuracy of level 1: 50.0 %" in shown
    assert "1/3" in shown
    assert "0:00:42 left" in shown


def test_a_run_that_another_process_has_is_not_cleared_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nestfl.comparing.comparison.PATIENCE", 0.1)
    comparison = Comparison(tmp_path, [ONE], [])
    directory = comparison.directory(ONE)
    directory.mkdir()
    (directory / "photo.png").touch()
    with pytest.raises(ConfigError, match="is no run's: remove it, or give another name="):
        comparison.prepare(ONE)
    held = Lock(directory / LAUNCHER_LOCK)
    with pytest.raises(ConfigError, match="is in use by process"):
        comparison.prepare(ONE)
    held.close()
    assert comparison.prepare(ONE) is False  # it has no checkpoint to go on from
    assert not directory.exists()
