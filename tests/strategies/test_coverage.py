"""Levels of few clients, and the reports on levels without clients."""

from __future__ import annotations

import io
import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from flwr.app import Context, RecordDict
from rich.console import Console

from nestfl.commands import app as command
from nestfl.watching.progress import Follower, display_on
from protocol.environment import STARTED_IN
from server_app import app as server
from server_app.config import overrides as checkout
from server_app.record.run_record import RunRecord
from server_app.record.summary import show, summarise
from strategies.federation import FederationError, FleetConfig
from strategies.round import NestedStrategy
from tests.support.federations import Federate, federate_in
from tests.support.grids import InProcessGrid

TWO = "fleet.clients=2 clients_per_round=2 rounds=1"


@pytest.fixture
def federate(tmp_path: Path) -> Federate:
    return federate_in(tmp_path)


def fleet(clients: int, *shares: float) -> list[int]:
    shares = shares or (0.25, 0.25, 0.25, 0.25)
    budgets = tuple((n + 1) / len(shares) for n in range(len(shares)))
    return [tier.clients for tier in FleetConfig(clients, budgets, shares).tiers]


def held(strategy: NestedStrategy) -> list[int]:
    return [strategy.level_of(client).number for _, client in sorted(strategy.clients.items())]


def grid_that_affords(*budgets: float) -> InProcessGrid:
    grid = InProcessGrid(len(budgets))
    for context, budget in zip(grid.contexts.values(), budgets, strict=True):
        context.node_config["budget"] = budget
    return grid


# --- few clients -----------------------------------------------------------------------------


def test_few_clients_hold_the_full_model_then_the_smallest_then_those_between() -> None:
    assert [fleet(clients) for clients in (1, 2, 3, 4)] == [
        [0, 0, 0, 1],
        [1, 0, 0, 1],
        [1, 1, 0, 1],
        [1, 1, 1, 1],
    ]


def test_a_tier_that_shall_have_no_clients_gets_none_of_few() -> None:
    assert fleet(1, 0.5, 0.5, 0.0) == [0, 1, 0]
    assert fleet(2, 0.0, 0.2, 0.0, 0.4, 0.4) == [0, 1, 0, 0, 1]
    assert fleet(2, 1.0, 0.0, 0.0, 0.0) == [2, 0, 0, 0]


@pytest.mark.parametrize("name", ["scalefl", "heterofl", "decoupled"])
def test_flowers_two_nodes_train_the_full_model_and_the_smallest_level(
    name: str, federate: Federate
) -> None:
    strategy, _ = federate(f"strategy={name} {TWO}", InProcessGrid(2))
    assert held(strategy) == [1, 4]


def test_a_node_that_comes_later_moves_nobody(federate: Federate) -> None:
    class Late(InProcessGrid):
        def get_node_ids(self) -> list[int]:
            trained = any(m.metadata.message_type == "train" for m in self.sent)
            return list(self.contexts) if trained else list(self.contexts)[1:]

    strategy, lines = federate(f"{TWO} rounds=2 evaluate.every=1", Late(2))
    assert held(strategy) == [1, 4]
    assert "lack" in lines[0]["levels"]["1"]
    assert "lack" not in lines[1]["levels"]["1"]
    assert "lack" not in summarise(lines)["levels"]["1"]  # type: ignore[arg-type]


def test_the_log_of_a_simulation_says_how_to_have_more_clients(
    federate: Federate, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with caplog.at_level(logging.INFO, "flwr"):
        federate(f"{TWO} fleet.clients=20", InProcessGrid(2))
        deployed = caplog.messages
        assert deployed[1] == "2 of the fleet's 20 clients are there"
        assert not any("a simulation" in line for line in deployed)
        caplog.clear()
        monkeypatch.setenv(STARTED_IN, "/")  # as in a simulation (client_app/__init__.py)
        federate(f"{TWO} fleet.clients=20", InProcessGrid(2))
        few = caplog.messages
        caplog.clear()
        federate("rounds=1")
    more = "--federation-config 'num-supernodes=20 client-resources-num-cpus=1'"
    assert more in few[1]
    assert few[1].startswith("2 of the fleet's 20 clients are there")
    assert not any("--federation-config" in line for line in caplog.messages)


# --- levels that nobody holds ----------------------------------------------------------------


def test_a_level_that_nobody_holds_is_said_at_the_start_and_marked_in_the_record(
    federate: Federate, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    strategy, lines = federate(f"name=two {TWO}", InProcessGrid(2))
    assert strategy.coverage.lacks == {2: "untrained", 3: "untrained"}
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert any(line.startswith("level 2 is held by no client") for line in warnings)
    events = [json.loads(e) for e in (tmp_path / "two" / "progress.jsonl").open()]
    assert events[0]["lacks"] == {"2": "untrained", "3": "untrained"}
    levels = lines[-1]["levels"]
    assert {n: level.get("lack") for n, level in levels.items()} == {
        **{"1": None, "4": None},
        **{"2": "untrained", "3": "untrained"},
    }
    assert lines[-1]["worst"] == min(levels[n]["accuracy"] for n in "14")
    assert lines[-1]["mean"] == sum(levels[n]["accuracy"] for n in "14") / 2


def test_a_run_in_which_every_level_is_held_marks_nothing(
    federate: Federate, tmp_path: Path
) -> None:
    strategy, lines = federate("name=all rounds=1")
    assert strategy.coverage.lacks == {}
    assert "lack" not in json.dumps(lines)
    assert "lacks" not in (tmp_path / "all" / "progress.jsonl").read_text()
    assert "untrained" not in strategy.state_dict()


def test_an_untrained_full_model_is_not_tested_on_clients(federate: Federate) -> None:
    strategy, lines = federate("fleet.shares=[1,1,1,0] rounds=1")
    assert strategy.coverage.lacks == {4: "untrained"}
    assert "local" in lines[-1]
    assert "global" not in lines[-1]


def test_the_table_marks_untrained_levels(federate: Federate, tmp_path: Path) -> None:
    federate(f"name=two {TWO}", InProcessGrid(2))
    record, output = RunRecord(tmp_path / "two"), io.StringIO()
    summary = json.loads(record.summary_file.read_text())
    assert summary["levels"]["2"]["lack"] == "untrained"
    show(record, summary, Console(file=output))
    rows = [line.split() for line in output.getvalue().splitlines()]
    assert [row[:2] for row in rows[2:4]] == [["untrained", "2"], ["untrained", "3"]]
    assert [row[0] for row in (rows[1], rows[4])] == ["1", "4"]
    assert "left out:    level 2, 3 of worst and mean" in output.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_marks_untrained_levels(tmp_path: Path, terminal: bool) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=terminal, width=100)
    levels = {"1": {"accuracy": 0.9}, "2": {"accuracy": 0.1, "lack": "untrained"}}
    follower = Follower(tmp_path)
    with display_on(console, quiet=False) as display:
        start = {"event": "start", "rounds": 4, "lacks": {"2": "untrained"}}
        (tmp_path / "progress.jsonl").write_text(json.dumps(start) + "\n")
        follower.step(display)
        (tmp_path / "metrics.jsonl").write_text(json.dumps({"round": 1, "levels": levels}) + "\n")
        follower.step(display)
    assert "Warning: no client holds level 2 (untrained)" in screen.getvalue()
    assert "accuracy of level 1: 90.0 %, 2 (untrained): 10.0 %" in screen.getvalue()
    if not terminal:
        assert screen.getvalue().count("Warning") == 1


def test_predict_warns_of_a_level_that_was_never_trained(
    federate: Federate, tmp_path: Path
) -> None:
    federate(f"name=two {TWO}", InProcessGrid(2))
    results = {
        level: CliRunner().invoke(command, ["predict", str(tmp_path / "two"), "--level", level])
        for level in ("2", "4")
    }
    assert "level 2 is untrained: no client had trained it by round 1" in results["2"].stderr
    assert "Level 2 (untrained) after round 1" in results["2"].stdout
    assert "untrained" not in results["4"].output


def test_a_resumed_run_knows_what_was_trained_before(federate: Federate, tmp_path: Path) -> None:
    """Client 1, alone of level 4, stays away from the resumed run."""

    class OfTwo(InProcessGrid):
        def get_node_ids(self) -> list[int]:
            return list(self.contexts)[:1]

    federate(f"name=run {TWO} strategy=scalefl", InProcessGrid(2))
    resumed, _ = federate(f"resume={tmp_path / 'run'} rounds=2 missing_levels=warn", OfTwo(2))
    assert resumed.coverage.lacks == {2: "untrained", 3: "untrained", 4: "no client"}


# --- devices that say what they afford -------------------------------------------------------


def test_a_fleet_of_devices_that_cannot_hold_the_full_model_stops_at_the_start(
    federate: Federate, tmp_path: Path
) -> None:
    grid = grid_that_affords(0.15, 0.3)
    with pytest.raises(
        FederationError, match=r"no device affords the full model: .*0\.3, .*0\.909"
    ):
        federate("name=poor fleet.clients=2 clients_per_round=2", grid)
    assert not any(m.metadata.message_type == "train" for m in grid.sent)
    assert "missing_levels=warn" in (tmp_path / "poor" / "progress.jsonl").read_text()


@pytest.mark.parametrize("plan", ["", "strategy=scalefl strategy.ratios=null"])
def test_told_so_it_trains_the_levels_below(plan: str, federate: Federate) -> None:
    overrides = f"{plan} fleet.clients=2 clients_per_round=2 rounds=1 missing_levels=warn"
    strategy, lines = federate(overrides, grid_that_affords(0.15, 0.3))
    assert strategy.coverage.lacks[strategy.levels[-1].number] == "untrained"
    assert lines[0]["clients"]["replied"] == 2


def test_one_device_that_affords_the_full_model_is_enough(federate: Federate) -> None:
    strategy, _ = federate(
        "fleet.clients=2 clients_per_round=2 rounds=1", grid_that_affords(0.15, 0.95)
    )
    assert held(strategy) == [1, 4]


# --- where the results of `flwr run .` go ----------------------------------------------------


@pytest.fixture
def app_copy(tmp_path: Path) -> Path:
    """A checkout, or what Flower unpacked of it: the same files."""
    return _copy_of_the_app(tmp_path / "app")


def _copy_of_the_app(folder: Path) -> Path:
    packages = ("client_app", "conf", "data", "inference", "models", "plugins", "protocol")
    for package in (*packages, "server_app", "strategies", "training"):
        shutil.copytree(checkout.APP / package, folder / package)
    shutil.copy(checkout.APP / "pyproject.toml", folder)
    return folder


def test_paths_start_in_the_checkout_that_is_run(app_copy: Path) -> None:
    (app_copy / "server_app" / "notes.txt").touch()  # not sent
    assert checkout.start_of_paths(app_copy) == app_copy


@pytest.mark.parametrize("change", ["changed", "added", "removed", "elsewhere"])
def test_another_checkout_gets_no_results(
    change: str,
    app_copy: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    match change:
        case "changed":
            (app_copy / "conf" / "config.yaml").write_text("seed: 1\n")
        case "added":
            (app_copy / "strategies" / "mine.py").touch()
        case "removed":
            (app_copy / "conf" / "experiment" / "smoke.yaml").unlink()
        case "elsewhere":
            app_copy = tmp_path
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert checkout.start_of_paths(app_copy) == tmp_path / "home" / "nestfl-results"
    assert f"The SuperLink was started in {app_copy}, which does not hold" in caplog.text


def simulate(folder: Path, monkeypatch: pytest.MonkeyPatch, **run_config: Any) -> None:
    """As `flwr run .` does with a SuperLink that was started in the folder."""
    monkeypatch.setenv("NESTFL_STARTED_IN", str(folder))
    overrides = "experiment=smoke strategy=fedavg rounds=1 name=run"
    config = {"hydra": overrides, "run-dir": "", **run_config}
    server.app(InProcessGrid(4), Context(1, 0, {}, RecordDict(), config))


def test_the_results_of_another_checkout_are_in_the_users_home_and_the_log_says_where(
    app_copy: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (app_copy / "strategies" / "mine.py").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with caplog.at_level(logging.INFO, "flwr"):
        simulate(app_copy, monkeypatch)
    results = tmp_path / "home" / "nestfl-results" / "runs" / "run"
    assert (results / "summary.json").is_file()
    assert not (app_copy / "runs").exists()
    assert f"This run's directory is {results}" in caplog.messages[:2]


def test_a_run_directory_that_is_given_is_taken_whatever_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    simulate(tmp_path, monkeypatch, **{"run-dir": str(tmp_path / "given")})
    assert (tmp_path / "given" / "summary.json").is_file()
    assert "The SuperLink was started" not in caplog.text
