"""A run's directory from another program: each command refuses it in one line with the file."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from inference.serving.node_part import PartError, read_part
from nestfl.commands import app
from nestfl.launching.launched_run import checkpoints_in
from server_app.record import checkpoint
from server_app.record.checkpoint import CheckpointError
from tests.support.federations import federate_in

DEEP = "[" * 100_000
BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    federate_in(folder)("name=mine evaluate.every=1 rounds=2 report=false")
    return folder / "mine"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "mine")


def commands(run: Path) -> list[list[str]]:
    """Every command that reads a run, but those that list several."""
    return [
        ["report", str(run)],
        ["predict", str(run)],
        ["split", str(run), "--output", str(run.parent / "parts"), "--exits", "1"],
        ["run", "--check", "--resume", str(run), "engine=local"],
    ]


def refused(arguments: list[str], *told: str) -> None:
    result: Result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, SystemExit), (arguments, result.exception)
    assert result.exit_code == 2, (arguments, result.output)
    (line,) = [each for each in result.stderr.splitlines() if each.startswith("nestfl ")]
    for each in told:
        assert each in line, (arguments, line)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "config.yaml cannot be read: the document is None: expected names with values"),
        (DEEP, "config.yaml cannot be read: the document is nested more than 64 deep"),
        (BOMB, "config.yaml cannot be read: the document has the alias *a"),
        ("model: 3\n", "config.yaml"),
    ],
)
def test_a_wrong_configuration_is_refused_by_every_command(run: Path, text: str, told: str) -> None:
    (run / "config.yaml").write_text(text)
    for arguments in commands(run):
        refused(arguments, told)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [("rounds", "many", "rounds: expected a whole number"), ("train", 3, "train is 3: expected")],
)
def test_a_wrong_setting_is_told_with_file_and_key(
    run: Path, key: str, value: object, told: str
) -> None:
    import yaml

    file = run / "config.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), key: value}))
    for arguments in commands(run)[1:]:
        refused(arguments, str(file), told)


def test_damaged_rounds_are_told_before_a_run_goes_on(run: Path) -> None:
    file = run / "metrics.jsonl"
    for line in (DEEP, '{"round": 1' + "0" * 400 + "}", '{"round": "2"}'):
        file.write_text(f"{line}\n")
        for arguments in (commands(run)[0], commands(run)[-1]):
            refused(arguments, f"{file} cannot be read: line 1: ")
    assert file.read_text() == f"{line}\n"


def test_a_damaged_fleet_is_told_before_a_run_goes_on(run: Path) -> None:
    file = run / "fleet.json"
    record = json.loads(file.read_text())
    record["clients"]["3"]["level"] = "two"
    file.write_text(json.dumps(record))
    for arguments in (commands(run)[0], commands(run)[-1]):
        refused(arguments, f"{file} cannot be read: clients.3.level is 'two'")


@pytest.mark.parametrize("name", ["fleet.json", "metrics.jsonl", "confusion.json", "summary.json"])
def test_a_named_pipe_is_no_record(run: Path, name: str) -> None:
    (run / name).unlink()
    os.mkfifo(run / name)
    refused(commands(run)[0], f"{run / name} is a named pipe")
    listed = CliRunner().invoke(app, ["runs", str(run)])
    assert listed.exit_code == 0


def test_a_checkpoint_that_is_no_file_or_nests_too_deeply_is_passed_over(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from safetensors.torch import save_file

    folder = run / checkpoint.FOLDER
    os.mkfifo(folder / "round-000004.safetensors")
    headers = ("[" * 60_000, '{"format": 2, "round": "3", "state": {}}', "[]")
    for header in headers:
        deep = folder / "round-000003.safetensors"
        sum_of = checkpoint._checksum(header, {"w": torch.ones(1)})
        save_file({"w": torch.ones(1)}, deep, {"nestfl": header, "checksum": sum_of})
        with pytest.raises(CheckpointError, match=str(deep)):
            checkpoint.load(deep)
        assert checkpoint.load(run).round == 2
    assert "round-000004.safetensors is a named pipe: expected a regular file" in caplog.text
    assert "trying the one before" in caplog.text


def test_the_newest_checkpoint_is_named_whatever_the_times_of_a_copy(run: Path) -> None:
    first, last = checkpoints_in(run)
    os.utime(first, (2e9, 2e9))
    assert checkpoints_in(run) == [first, last]
    assert last.name == "round-000002.safetensors"


def test_parts_are_read_with_the_same_care(run: Path) -> None:
    parts = run.parent / "parts"
    arguments = ["split", str(run), "--output", str(parts), "--exits", "1"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    (part,) = parts.iterdir()
    facts = json.loads((part / "part.json").read_text())
    task = {**facts["task"], "num_classes": 10**12}
    wrong = [
        (DEEP, "nested more than 64 deep"),
        (json.dumps({**facts, "first": "0"}), "first is '0': expected a whole number"),
        (json.dumps({**facts, "threshold": float("nan")}), "threshold is nan"),
        (json.dumps({**facts, "task": task}), "task.num_classes is 1000000000000: expected 1 to"),
        (json.dumps({**facts, "other": 1}), "has 'other', which is unknown"),
    ]
    for text, told in wrong:
        (part / "part.json").write_text(text)
        refused(["serve", str(part)], str(part / "part.json"), told)
    (part / "part.json").write_text(json.dumps(facts))
    (part / "part.safetensors").unlink()
    os.mkfifo(part / "part.safetensors")
    with pytest.raises(PartError, match=r"part\.safetensors is a named pipe"):
        read_part(part)
