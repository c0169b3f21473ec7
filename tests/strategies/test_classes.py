"""A test on the server counts answers by class exactly, and changes no result."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from flwr.app import Message

from data.clients import global_test
from data.spec import DatasetSpec
from models.task import Task
from protocol.documents import DocumentError
from protocol.work import Work
from server_app.record.checkpoint import load
from server_app.record.metrics import read_confusion
from strategies.evaluation import class_sizes, classes_counted, level_counts
from tests.support.federations import Federate, federate_in, untimed
from tests.support.grids import InProcessGrid
from tests.support.toy_training import CPU, digits, resnet
from training.testing import evaluate

pytestmark = pytest.mark.usefixtures("one_thread")
TESTED = "evaluate.every=1"


@pytest.fixture
def federate(tmp_path: Path) -> Federate:
    return federate_in(tmp_path)


def test_counts_are_of_the_networks_own_answer() -> None:
    net, data = resnet(), digits(300)
    plain, counted = evaluate(net, data, CPU), evaluate(net, data, CPU, by_class=True)
    assert plain == counted  # losses and accuracies, bit for bit
    assert plain[-1].confusion is None
    confusion = counted[-1].confusion
    assert confusion is not None
    assert confusion.sum(1).tolist() == torch.bincount(data.labels, minlength=10).tolist()
    assert int(confusion.diagonal().sum()) == round(counted[-1].accuracy * 300)


def test_only_the_last_report_has_counts_and_an_ensembles_are_its_own() -> None:
    from tests.support.toy_training import EXITS

    net, data = resnet(EXITS), digits(60)
    *exits, ensemble = evaluate(net, data, CPU, ensemble=True, by_class=True)
    assert [each.confusion for each in exits] == [None, None]
    assert ensemble.confusion is not None
    assert int(ensemble.confusion.diagonal().sum()) == round(60 * ensemble.accuracy)


def test_rows_are_classes_and_columns_answers() -> None:
    """Ones are taken for zeros, twos are right, and nothing was of class 0."""
    confusion = torch.tensor([[0, 0, 0], [2, 1, 0], [0, 0, 4]])
    assert class_sizes(confusion) == [0, 3, 4]
    assert level_counts(confusion) == {
        "right": [0, 1, 4],
        "confusion": [[0, 0, 0], [2, 1, 0], [0, 0, 4]],
    }


def test_of_many_classes_there_is_no_matrix_and_of_a_vocabulary_nothing() -> None:
    assert level_counts(torch.eye(201, dtype=torch.int64)).keys() == {"right"}
    assert classes_counted(Task("resnet20", 1000))
    assert not classes_counted(Task("resnet20", 1001))
    assert not classes_counted(Task("transformer-micro", 100))


def test_a_line_has_the_right_answers_by_class_and_a_file_the_newest_matrices(
    federate: Federate, tmp_path: Path
) -> None:
    _, lines = federate(f"{TESTED} name=run")
    sizes = torch.bincount(global_test(DatasetSpec(max_test=60)).labels, minlength=10).tolist()
    for line in lines:
        assert line["class_sizes"] == sizes
        for level in line["levels"].values():
            assert sum(level["right"]) == round(60 * level["accuracy"])
            assert "confusion" not in level
    found = read_confusion(tmp_path / "run" / "confusion.json")
    assert found is not None
    assert found["round"] == 2
    for name, counts in found["levels"].items():
        assert [sum(row) for row in counts] == sizes
        assert [counts[n][n] for n in range(10)] == lines[-1]["levels"][name]["right"]
    fleet = json.loads((tmp_path / "run" / "fleet.json").read_text())
    assert fleet["classes"] == list("0123456789")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert not {"right", "confusion"} & set(summary["levels"]["1"])


def killed_in_round(number: int) -> InProcessGrid:
    def kill(client: int, message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "train" and Work.read(message.content).round == number:
            raise KeyboardInterrupt
        return reply

    return InProcessGrid(4, kill)


def test_a_resumed_run_ends_with_the_matrices_of_an_uninterrupted_one(
    federate: Federate, tmp_path: Path
) -> None:
    more = f"{TESTED} train.schedule=constant rounds=3"
    _, lines = federate(f"{more} name=whole")
    with pytest.raises(KeyboardInterrupt):
        federate(f"{more} name=killed", killed_in_round(3))
    _, resumed = federate(f"resume={tmp_path / 'killed'}")
    assert list(map(untimed, resumed)) == list(map(untimed, lines))
    whole, again = (tmp_path / name / "confusion.json" for name in ("whole", "killed"))
    assert again.read_bytes() == whole.read_bytes()


def test_going_back_leaves_no_matrices_of_a_later_round(federate: Federate, tmp_path: Path) -> None:
    from server_app.config.composing import compose
    from server_app.record.run_record import RunRecord

    federate(f"{TESTED} rounds=3 name=run checkpoint.keep=3")
    file = tmp_path / "run" / "confusion.json"
    last = read_confusion(file)
    starts = {n: load(tmp_path / f"run/checkpoints/round-{n:06d}.safetensors") for n in (1, 2)}
    config = compose(f"output={tmp_path}")
    with RunRecord.resume(config, starts[2]):
        second = read_confusion(file)
    assert second is not None
    assert last is not None
    assert (second["round"], last["round"]) == (2, 3)
    untested = {**starts[1].state["metrics"], "levels": {}}
    with RunRecord.resume(config, replace(starts[1], state={"metrics": untested})):
        assert not file.exists()


def test_damaged_matrices_are_refused_with_the_name_of_their_file(tmp_path: Path) -> None:
    file = tmp_path / "confusion.json"
    for text in ("", "[1]", '{"round": 1, "lev'):
        file.write_text(text)
        with pytest.raises(DocumentError, match=r"confusion\.json cannot be read"):
            read_confusion(file)
