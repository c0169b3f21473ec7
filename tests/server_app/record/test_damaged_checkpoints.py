"""A damaged checkpoint is neither trained on nor answered from; the round before it is used."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from nestfl.commands import app
from server_app.record import checkpoint
from tests.support.federations import federate_in


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    federate_in(folder)("name=mine evaluate.every=1")
    return folder / "mine"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "mine")


@pytest.fixture
def whole(run: Path) -> checkpoint.Checkpoint:
    """The last checkpoint, before 64 bytes in its middle are changed."""
    found = checkpoint.load(run)
    loaded = checkpoint.Checkpoint(
        found.path,
        found.round,
        {name: tensor.clone() for name, tensor in found.tensors.items()},
        found.state,
    )
    contents = bytearray(found.path.read_bytes())
    middle = len(contents) // 2
    contents[middle : middle + 64] = bytes(byte ^ 0xFF for byte in contents[middle : middle + 64])
    found.path.write_bytes(contents)
    return loaded


def test_a_damaged_round_is_not_answered_from(run: Path, whole: checkpoint.Checkpoint) -> None:
    answered = CliRunner().invoke(app, ["predict", str(run)])
    assert answered.exit_code == 0, answered.output
    assert f"after round {whole.round - 1}" in answered.stdout
    refused = CliRunner().invoke(app, ["predict", str(whole.path)])
    assert refused.exit_code == 2
    assert f"{whole.path} is damaged" in refused.output


def test_a_damaged_round_is_trained_again(run: Path, whole: checkpoint.Checkpoint) -> None:
    _, lines = federate_in(run.parent)(f"resume={run}")
    again = checkpoint.load(run)
    assert (again.path, again.round) == (whole.path, whole.round)
    assert all(torch.equal(again.tensors[name], whole.tensors[name]) for name in whole.tensors)
    assert [line["round"] for line in lines] == [1, 2]
