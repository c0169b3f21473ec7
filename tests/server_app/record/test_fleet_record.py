"""fleet.json: the facts of a run, written when it starts."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

from models import Slice, build
from nestfl.launching.request import Request
from protocol.code import code_hash
from protocol.documents import DocumentError
from server_app import app as server
from server_app.building import strategy_of
from server_app.config.composing import compose
from server_app.record.files import FLEET_FILE
from server_app.record.fleet_record import (
    FleetRecord,
    clients_of,
    fleet_record,
    part_names,
    read_fleet,
    write_fleet,
)
from server_app.record.recorder import Recorder
from server_app.record.run_record import RunRecord
from strategies.levels.cost import cost
from strategies.levels.planning import Level
from strategies.nodes.enrolment import Client
from tests.support.federations import SMALL
from tests.support.grids import InProcessGrid

SCALEFL = f"{SMALL} strategy=scalefl strategy.splits=[[6,0.5],[9,1]] strategy.ratios=null"
CLIENT = {"level": 1, "examples": 48, "budget": 0.125, "device": "cpu", "validation": 6, "test": 6}


def run(folder: Path, overrides: str, nodes: int = 4) -> FleetRecord:
    server.run(
        InProcessGrid(nodes), compose(f"{overrides} output={folder} name=run"), None, "again"
    )
    record = read_fleet(folder / "run" / FLEET_FILE)
    assert record is not None
    return record


def test_a_run_says_what_its_levels_are_and_cost(tmp_path: Path) -> None:
    record = run(tmp_path, f"{SMALL} rounds=1 strategy.widths=[0.125,0.25,0.5,1]")
    half, full = record["levels"][2:]
    assert [level["number"] for level in record["levels"]] == [1, 2, 3, 4]
    assert (half["width"], half["depth"], half["units"], half["exits"]) == (0.5, 9, 9, [9])
    assert (half["macs"], half["exit_macs"]) == (
        635_712,
        {"9": 635_712},
    )  # by hand: see the round's
    assert full["macs"] == 2_532_992
    weights = sum(
        p.numel() for p in build("resnet20", 10, slice=Slice(0.5), in_channels=1).parameters()
    )
    assert half["parameters"] == weights
    assert half["bytes"] == 4 * weights  # this norm keeps no statistics
    assert half["share"] == pytest.approx(weights / full["parameters"])
    assert full["share"] == 1


def test_training_memory_is_weights_gradients_momentum_and_a_batch_of_activations(
    tmp_path: Path,
) -> None:
    record = run(tmp_path, f"{SMALL} rounds=1")
    task, full = compose(SMALL).task, record["levels"][-1]
    kept = cost(task, Slice(), batch=64).memory
    assert full["memory"] == 3 * 4 * full["parameters"] + kept


def test_a_run_says_who_its_clients_are(tmp_path: Path) -> None:
    record = run(tmp_path, f"{SMALL} rounds=1")
    assert list(record["clients"]) == ["0", "1", "2", "3"]
    assert record["clients"]["0"] == CLIENT
    assert [client["level"] for client in record["clients"].values()] == [1, 2, 3, 4]


def test_levels_of_depth_hold_the_parts_up_to_their_exit(tmp_path: Path) -> None:
    record = run(tmp_path, f"{SCALEFL} rounds=1")
    parts = {part["name"]: part for part in record["parts"]}
    blocks = [f"layer{stage}.{block}" for stage in (1, 2, 3) for block in (0, 1, 2)]
    assert list(parts) == ["stem", *blocks, "exit 6", "head"]
    assert parts["head"] == {
        "name": "head", "parameters": 650, "held": {"1": 0.0, "2": 1.0}, "own": [],
    }  # fmt: skip
    # 2 * 9 * 8 * 8 weights and 4 * 8 of norms, of 2 * 9 * 16 * 16 and 4 * 16
    assert parts["layer1.0"]["held"] == {"1": pytest.approx(1184 / 4672, abs=1e-6), "2": 1.0}
    assert [part["held"]["1"] > 0 for part in record["parts"]] == [True] * 7 + [False] * 3 + [
        True, False,
    ]  # fmt: skip
    exits = record["levels"][1]["exit_macs"]
    assert list(exits) == ["6", "9"]
    assert exits["6"] < exits["9"] == record["levels"][1]["macs"]


def test_levels_that_share_nothing_train_copies_of_their_own(tmp_path: Path) -> None:
    record = run(tmp_path, f"{SMALL} strategy=decoupled rounds=1")
    for part in record["parts"]:
        assert part["own"] == [int(level) for level, share in part["held"].items() if share]


def test_what_was_run_and_how_to_repeat_it_are_kept(tmp_path: Path) -> None:
    record = run(tmp_path, f"{SMALL} rounds=1")
    assert (record["command"], record["code"]) == ("again", code_hash())
    assert record["versions"].keys() == {"python", "torch", "flwr", "nestfl"}
    assert record["started"].endswith("+00:00")
    assert record["resumed"] == []


def test_a_run_of_flwr_run_is_repeated_by_that(tmp_path: Path) -> None:
    overrides = f"{SMALL} rounds=1 output='{tmp_path}' name=run"
    server.app(InProcessGrid(4), Context(1, 0, {}, RecordDict(), {"hydra": overrides}))
    record = read_fleet(tmp_path / "run" / FLEET_FILE)
    assert record is not None
    *command, config = shlex.split(record["command"])
    assert command == ["flwr", "run", ".", "--run-config"]
    assert tomllib.loads(config) == {"hydra": overrides}


def test_a_run_of_nestfl_run_is_repeated_by_what_was_typed() -> None:
    assert Request().command() == "nestfl run"
    typed = ["strategy=heterofl", "dataset.path=my images", "rounds=3"]
    request = Request(typed, nodes=8, workers=2, run_dir=Path("here"))
    assert request.command() == (
        "nestfl run strategy=heterofl 'dataset.path=my images' rounds=3 --nodes 8 --workers 2"
    )


def test_a_resumed_run_keeps_its_first_start_and_adds_the_next(tmp_path: Path) -> None:
    first = run(tmp_path, f"{SMALL} rounds=1")
    place = tmp_path / "run"
    server.run(InProcessGrid(4), compose(f"resume={place} rounds=2"), None, "go on")
    record = read_fleet(place / FLEET_FILE)
    assert record is not None
    (again,) = record["resumed"]
    assert (again["command"], again["after"], again["code"]) == ("go on", 1, code_hash())
    assert record == {**first, "resumed": [again]}


def test_clients_that_join_later_are_added(tmp_path: Path) -> None:
    config = compose(f"{SMALL} output={tmp_path} name=run")
    grid = InProcessGrid(4)
    with RunRecord.create(config) as record:
        recorder = Recorder(record, config)
        strategy = recorder.strategy = strategy_of(config, observer=recorder)
        strategy._open(grid, None)
        late = strategy.roster.clients.pop(3)
        recorder.started(strategy.coverage, strategy.clients)
        assert list(json.loads(record.fleet_file.read_text())["clients"]) == ["0", "1", "2"]
        strategy.roster.clients[3] = late
        recorder.finished_round({"round": 0})
    assert list(json.loads(record.fleet_file.read_text())["clients"]) == ["0", "1", "2", "3"]


def test_a_client_that_may_hold_several_levels_names_them_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    strategy = strategy_of(compose(SMALL))
    strategy._open(InProcessGrid(4), None)

    def all_below(client: Client) -> Sequence[Level]:
        return strategy.levels[: strategy.level_of(client).number]

    monkeypatch.setattr(strategy, "levels_of", all_below)
    clients = clients_of(strategy)
    assert "levels" not in clients["0"]
    assert (clients["2"]["level"], clients["2"]["levels"]) == (3, [1, 2, 3])


@pytest.mark.parametrize("text", ["{}", '{"levels": []}'])
def test_the_record_of_an_older_version_is_passed_over(tmp_path: Path, text: str) -> None:
    assert read_fleet(tmp_path / FLEET_FILE) is None
    (tmp_path / FLEET_FILE).write_text(text)
    assert read_fleet(tmp_path / FLEET_FILE) is None


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_damaged_record_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / FLEET_FILE).write_text(text)
    with pytest.raises(DocumentError, match=f"{tmp_path / FLEET_FILE} cannot be read: "):
        read_fleet(tmp_path / FLEET_FILE)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    strategy = strategy_of(compose(SMALL))
    strategy._open(InProcessGrid(4), None)
    record = fleet_record(strategy, "nestfl run")
    write_fleet(tmp_path / FLEET_FILE, record)
    assert read_fleet(tmp_path / FLEET_FILE) == record


@pytest.mark.parametrize(
    ("tensors", "parts"),
    [
        ("conv1.weight layer1.0.conv1.weight layer1.1.bn.bias linear.bias",
         "stem layer1.0 layer1.1 head"),
        ("embeddings.word.weight encoder.layer.0.output.LayerNorm.bias pooler.dense.weight",
         "stem encoder.layer.0 head"),
        ("features.0.0.weight features.1.0.block.0.0.weight features.1.1.block.0.0.weight",
         "features.0.0 features.1.0 features.1.1"),
        ("layers.8_1.normal.1.norm.weight", "layers.8_1"),
        ("left.weight right.weight fc.bias", "left right fc"),
    ],
)  # fmt: skip
def test_tensors_are_of_the_block_that_their_names_number(tensors: str, parts: str) -> None:
    assert part_names(tensors.split()) == parts.split()


def test_an_early_exit_is_a_part() -> None:
    names = ["conv1.weight", "layer1.0.bn.bias", "exits.6.linear.weight", "linear.weight"]
    assert part_names(names) == ["stem", "layer1.0", "exit 6", "head"]
