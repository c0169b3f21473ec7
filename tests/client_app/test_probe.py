"""A measured budget: fast parts count and other load does not, and the speed is kept."""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from client_app.probe import Times, keep_speed, kept_speed, probe
from models.task import Task
from nestfl.local_engine import LocalGrid
from protocol.train_settings import TrainSettings
from server_app.app import run
from server_app.config.composing import compose
from server_app.record.fleet_record import read_fleet
from tests.support.federations import SMALL

TASK, CPU = Task("resnet20", 10, 1, 8), TrainSettings(device="cpu")


@pytest.fixture
def log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    """Flower's log."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)  # to pytest
    caplog.set_level(logging.INFO, "flwr")
    return caplog


# --- the estimate --------------------------------------------------------------------------------


def beside_load(fastest: float, seed: int, count: int) -> list[float]:
    """Times of which one in ten is undisturbed, and others up to a thousand times as long."""
    chance = random.Random(seed)
    times = [fastest * (1 + 0.05 * chance.random()) for _ in range(max(1, count // 10))]
    times += [fastest * 10 ** (3 * chance.random()) for _ in range(count - len(times))]
    return chance.sample(times, len(times))


def test_a_few_undisturbed_times_are_enough_for_the_speed() -> None:
    """A batch of 32 in 10 ms, and products that take 0.3 ms, in two threads half of that."""
    speeds = [
        Times(
            *(32, 2),
            beside_load(0.010, 3 * seed, 12),
            beside_load(0.0003, 3 * seed + 1, 60),
            beside_load(0.00015, 3 * seed + 2, 60),
        ).samples_per_second
        for seed in range(50)
    ]
    assert max(speeds) <= 1.2 * min(speeds)
    assert min(speeds) >= 32 / 0.010 * 2 / 1.2
    assert max(speeds) <= 32 / 0.010 * 2


def test_recorded_steps_of_a_busy_device_give_one_speed() -> None:
    """Seconds of processor time of five steps, each try beside 12 busy processes on two cores."""
    tries = [
        [0.01223, 0.012386, 0.013556, 0.0191, 0.0144],
        [0.010823, 0.010938, 0.011353, 0.0152, 0.0139],
        [0.0131, 0.011447, 0.01186, 0.011196, 0.0302],
    ]
    speeds = [Times(32, 1, steps).samples_per_second for steps in tries]
    assert max(speeds) <= 1.2 * min(speeds)


@pytest.mark.parametrize(
    ("alone", "together", "gain"),
    [([4.0, 6.0], [2.0, 900.0], 2.0), ([4.0], [0.5], 3.0), ([4.0], [80.0], 1.0), ([], [], 1.0)],
)
def test_threads_gain_no_more_than_their_number_and_no_less_than_one(
    alone: list[float], together: list[float], gain: float
) -> None:
    assert Times(32, 3, [8.0], alone, together).samples_per_second == 4 * gain


# --- what is kept --------------------------------------------------------------------------------


def test_a_speed_is_measured_once_for_a_task_and_its_threads(cache_folder: Path) -> None:
    first = probe(TASK, CPU)
    again = probe(TASK, CPU)
    assert again.samples_per_second == first.samples_per_second
    assert (first.when.partition(",")[0], again.when.partition(",")[0]) == (
        "measured now",
        "measured earlier",
    )
    others = [(TASK, TrainSettings(device="cpu", batch_size=4)), (Task("resnet20", 7, 1, 8), CPU)]
    assert all("measured now" in probe(*other).when for other in others)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before + 1)
        assert "measured now" in probe(TASK, CPU).when
    finally:
        torch.set_num_threads(before)
    assert not list(cache_folder.glob(".speed-*"))  # nothing half-written is left


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 100_000,
        "[1]",
        json.dumps({"of": "key"}),
        json.dumps({"of": "another", "samples_per_second": 5.0}),
        *(f'{{"of": "key", "samples_per_second": {bad}}}'
          for bad in ("NaN", "Infinity", "-1", "0", '"5"', "true", "1" + "0" * 400)),
    ],
)  # fmt: skip
def test_a_damaged_file_is_passed_over_and_replaced(tmp_path: Path, text: str) -> None:
    file = tmp_path / "speed.json"
    file.write_text(text)
    assert kept_speed(file, "key") is None
    keep_speed(file, "key", 12.5)
    assert kept_speed(file, "key") == 12.5


def test_where_nothing_can_be_kept_the_speed_is_measured_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NESTFL_CACHE", str(tmp_path / "file"))
    assert probe(TASK, CPU).samples_per_second > 0
    (line,) = log.messages
    assert line.startswith("the measured speed is not kept")


# --- in a run ------------------------------------------------------------------------------------


def test_a_device_measures_in_the_threads_it_trains_in_and_the_run_shows_it(
    tmp_path: Path, cache_folder: Path, log: pytest.LogCaptureFixture
) -> None:
    own = tmp_path / "own.npz"
    images = np.random.default_rng(0).integers(0, 255, (60, 8, 8), dtype=np.uint8)
    np.savez(own, x=images, y=np.arange(60) % 10)
    grid = LocalGrid(2)  # which gives each client one thread
    for context, said in zip(grid.contexts.values(), ({"budget": 1.0}, {}), strict=True):
        context.node_config = {"data": str(own), **said}
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before + 1)
        chosen = "rounds=1 fleet.clients=2 clients_per_round=2 name=mine"
        strategy = run(grid, compose(f"{SMALL} {chosen} output={tmp_path}"))
    finally:
        torch.set_num_threads(before)
    named, measured = (strategy.clients[number].profile for number in (0, 1))
    assert (named.measured, measured.measured) == (False, True)
    (line,) = [line for line in log.messages if line.startswith("budget ")]
    assert "on cpu, threads: 1 (measured now, kept in " in line
    assert f"budget {measured.budget:.3g}: " in line
    assert f"budgets that devices have measured: client 1: {measured.budget:.3g}" in log.messages
    fleet = read_fleet(tmp_path / "mine" / "fleet.json")
    assert fleet is not None
    assert "measured" not in fleet["clients"]["0"]
    assert fleet["clients"]["1"]["measured"]
    summary = json.loads((tmp_path / "mine" / "summary.json").read_text())
    assert summary["measured_budgets"] == {"1": measured.budget}
    assert "(measured)" in (tmp_path / "mine" / "report.html").read_text()
