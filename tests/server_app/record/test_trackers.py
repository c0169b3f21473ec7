"""Trackers get a run's numbers during the run; their failure does not stop it."""

from __future__ import annotations

import json
import logging
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from nestfl.local_engine import LocalGrid
from server_app import app as server
from server_app.config import composing as settings
from server_app.config.composing import ConfigError, compose
from server_app.config.saved import that_matter
from server_app.record.metrics import numbers
from server_app.record.trackers import RUN_TAG, Tracker
from strategies.round import NestedStrategy

SMALL = (
    "fleet=small model=resnet20 strategy=fedavg rounds=2 train.epochs=1 dataset.max_train=120 "
    "dataset.max_test=40 evaluate.every=1 report=false"
)
BLOCK, HEADER = 32768, 7
"""Of wandb's files: the size of a block, and of what stands before each piece of a record."""


def run(folder: Path, overrides: str) -> list[dict[str, Any]]:
    """Run a small federation; return its lines of metrics."""
    config = compose(f"{SMALL} output={folder} name=run {overrides}")
    server.run(LocalGrid(config.fleet.clients), config)
    return lines_of(folder / "run")


def lines_of(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def wandb_records(file: Path) -> Iterator[Any]:
    """Yield the records of a file that wandb wrote offline: pieces in blocks, as in LevelDB."""
    from wandb.proto import wandb_internal_pb2

    messages: Any = wandb_internal_pb2  # made by a program, without types
    content, at, pieces = file.read_bytes(), HEADER, b""
    while at + HEADER <= len(content):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        size, kind = struct.unpack("<HB", content[at + 4 : at + HEADER])
        if at + HEADER + size > len(content):
            return  # it is being written
        pieces, at = pieces + content[at + HEADER : at + HEADER + size], at + HEADER + size
        if kind in (1, 4):  # a whole record, or the end of one
            record = messages.Record()
            record.ParseFromString(pieces)
            yield record
            pieces = b""


def finished_records(file: Path) -> list[Any]:
    """Return the records once the last is there: wandb's own process writes after the run's end."""
    end = time.monotonic() + 120
    while True:
        records = list(wandb_records(file))
        if any(each.WhichOneof("record_type") == "exit" for each in records):
            return records
        assert time.monotonic() < end, f"wandb has written {file.stat().st_size} bytes, and no end"
        time.sleep(0.1)


def test_wandb_gets_every_round_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="the extra nestfl[wandb] is not installed")
    lines = run(tmp_path, "tracker=wandb tracker.mode=offline tracker.project=mine")
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    records = finished_records(file)
    (started,) = (each.run for each in records if each.WhichOneof("record_type") == "run")
    assert (started.project, started.display_name) == ("mine", "run")
    asked = {item.key: json.loads(item.value_json) for item in started.config.update}
    assert asked["strategy"]["name"] == "fedavg"
    sent = [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json)
         for item in each.history.item}
        for each in records
        if each.WhichOneof("record_type") == "history"
    ]  # fmt: skip
    assert [each["round"] for each in sent] == [1, 2]
    for each, line in zip(sent, lines, strict=True):
        assert {name: each[name] for name, _ in numbers(line)} == pytest.approx(dict(numbers(line)))


def mlflow_run(folder: Path) -> tuple[Any, Any]:
    """Return MLflow's client, and the one run that there is."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("nestfl")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    return client, found


def test_mlflow_gets_every_round_and_goes_on_with_a_resumed_run(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="the extra nestfl[mlflow] is not installed")
    lines = run(tmp_path, "tracker=mlflow")
    client, first = mlflow_run(tmp_path)
    assert (first.info.run_name, first.info.status) == ("run", "FINISHED")
    assert (first.data.params["strategy.name"], first.data.params["rounds"]) == ("fedavg", "2")
    for name, value in numbers(lines[-1]):
        assert first.data.metrics[name] == pytest.approx(value)

    config = compose(f"resume={tmp_path / 'run'} rounds=3")
    server.run(LocalGrid(4), config)
    client, again = mlflow_run(tmp_path)
    assert again.info.run_id == first.info.run_id
    assert again.data.tags[RUN_TAG] == config.run_id
    means = client.get_metric_history(first.info.run_id, "mean")
    assert [(each.step, each.value) for each in means] == [
        (line["round"], pytest.approx(line["mean"])) for line in lines_of(tmp_path / "run")
    ]


def test_mlflow_is_told_that_a_run_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="the extra nestfl[mlflow] is not installed")

    def breaks(*_: object) -> None:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(NestedStrategy, "start", breaks)
    with pytest.raises(RuntimeError, match="broken on purpose"):
        run(tmp_path, "tracker=mlflow")
    assert mlflow_run(tmp_path)[1].info.status == "FAILED"


def test_a_tracker_that_cannot_be_opened_ends_the_run_before_its_first_round(
    tmp_path: Path,
) -> None:
    pytest.importorskip("mlflow", reason="the extra nestfl[mlflow] is not installed")
    with pytest.raises(ConfigError, match=r"tracker=mlflow cannot be opened: .*nowhere"):
        run(tmp_path, "tracker=mlflow tracker.uri=nowhere://at/all")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


class FailsInRoundTwo:
    """A place that can be reached for a while."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.closed = False

    def send(self, round: int, values: Mapping[str, float]) -> None:
        if round == 2:
            raise ConnectionError("the line is down")
        self.sent.append(round)

    def close(self, failed: bool) -> None:
        self.closed = True


def test_a_tracker_that_fails_is_told_of_once_and_left_alone(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = FailsInRoundTwo()
    tracker = Tracker(service)
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)  # to pytest
    with caplog.at_level(logging.WARNING, "flwr"):
        for number in (1, 2, 3):
            tracker.finished_round({"round": number, "mean": 0.5})
        tracker.close(failed=False)
    assert service.sent == [1]
    assert not service.closed
    told = [record.getMessage() for record in caplog.records]
    assert told == ["the tracker has failed, and the run goes on without it: the line is down"]


def test_numbers_that_are_none_are_not_sent() -> None:
    sent: list[Mapping[str, float]] = []

    class Keeps:
        def send(self, round: int, values: Mapping[str, float]) -> None:
            sent.append(values)

        def close(self, failed: bool) -> None:
            pass

    Tracker(Keeps()).finished_round({"round": 1, "train": {"loss": float("nan")}, "mean": 0.25})
    assert sent == [{"mean": 0.25}]


def test_a_tracker_that_is_not_installed_is_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing(name: str) -> None:
        return None

    monkeypatch.setattr(settings, "find_spec", nothing)
    with pytest.raises(ConfigError, match=r"pip install 'nestfl\[wandb\]'"):
        compose("tracker=wandb")
    compose("tracker=none")


def test_a_tracker_has_its_own_settings_and_no_others() -> None:
    with pytest.raises(ConfigError, match="no key 'mode' in tracker"):
        compose("tracker=mlflow tracker.mode=offline")
    with pytest.raises(ConfigError, match="unknown tracker 'weights'"):
        compose("tracker=weights")


def test_where_numbers_go_changes_no_result() -> None:
    assert that_matter({"tracker.name": "wandb", "train.lr": 0.1}) == {"train.lr": 0.1}
