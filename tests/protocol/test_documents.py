"""The reader of a run's own files: bounded, typed, and with errors of one line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from protocol import documents
from protocol.documents import DocumentError, read_json, read_lines, read_yaml
from server_app.record.fleet_record import FleetRecord
from server_app.record.metrics import RoundMetrics

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


def told(file: Path, text: str | bytes, hint: Any = Any) -> str:
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DocumentError) as error:
        (read_yaml if file.suffix == ".yaml" else read_json)(file, hint)
    message = str(error.value)
    assert message.startswith(f"{file} cannot be read: ")
    assert "\n" not in message
    assert len(message) < 600
    return message.removeprefix(f"{file} cannot be read: ")


@pytest.mark.parametrize("name", ["a.json", "a.yaml"])
@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_what_is_nested_too_deeply_is_refused(tmp_path: Path, name: str, opening: str) -> None:
    assert "nested more than 64 deep" in told(tmp_path / name, opening * 100_000)
    closing = "]" if opening == "[" else "}"
    assert "deep" in told(tmp_path / name, opening * 70 + "1" + closing * 70)


def test_aliases_are_refused_before_they_multiply(tmp_path: Path) -> None:
    assert "has the alias *a" in told(tmp_path / "a.yaml", BOMB)


def test_a_file_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MOST_JSON", "MOST_YAML"):
        monkeypatch.setattr(documents, name, 100)
    for name in ("a.json", "a.yaml"):
        assert told(tmp_path / name, f"[{'1, ' * 50}1]") == "it has more than 100 bytes"
    (tmp_path / "lines").write_text("[" + "1, " * 50 + "1]\n")
    with pytest.raises(DocumentError, match="a line has more than 100 bytes"):
        read_lines(tmp_path / "lines")


@pytest.mark.parametrize("name", ["a.json", "a.yaml", "lines"])
def test_only_regular_files_are_opened(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    read = {"a.json": read_json, "a.yaml": read_yaml, "lines": read_lines}[name]
    with pytest.raises(DocumentError, match=f"{tmp_path / name} is a named pipe"):
        read(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"round": "1"}', "round is '1': expected a whole number"),
        ('{"round": true}', "round is True: expected a whole number"),
        ('{"round": 1' + "0" * 400 + "}", "round is a number of 1329 bits"),
        ('{"round": 1' + "0" * 5000 + "}", "Exceeds the limit"),
        ("{}", "the document has no round"),
        ("[]", "the document is []: expected names with values"),
        ('{"round": 1, "mean": NaN}', "mean is nan: expected a finite number"),
        ('{"round": 1, "mean": 1e999}', "mean is inf: expected a finite number"),
        ('{"round": 1, "seconds": null}', "seconds is None: expected a number"),
        ('{"round": 1, "later": [1, NaN]}', "later.1 is nan: expected a finite number"),
        ('{"round": 1, "levels": {"1": {"exits": {"6": 3}}}}', "levels.1.exits.6 is 3: expected"),
        ('{"round": 1', "Expecting"),
        ("\0", "Expecting"),
        (b"\xff\xfe\xff", ""),
    ],
)
def test_a_wrong_value_is_told_with_its_key(tmp_path: Path, text: str, expected: str) -> None:
    assert told(tmp_path / "a.json", text, RoundMetrics).startswith(expected)


def test_a_line_is_told_with_its_number_and_what_a_kill_cut_short_is_left_out(
    tmp_path: Path,
) -> None:
    file = tmp_path / "metrics.jsonl"
    assert read_lines(file, RoundMetrics) == []
    file.write_text('{"round": 1, "new": [1]}\n{"round": 2}\n{"rou')
    assert read_lines(file, RoundMetrics) == [{"round": 1, "new": [1]}, {"round": 2}]
    file.write_text('{"round": 1}\n{"round": []}\n')
    with pytest.raises(DocumentError, match=r"metrics.jsonl cannot be read: line 2: round is"):
        read_lines(file, RoundMetrics)


def test_a_key_that_need_not_be_there_is_checked_where_it_is(tmp_path: Path) -> None:
    client = '{"level": 1, "examples": 2, "budget": 0.5, "device": "cpu"%s}'
    rest = '"started": "", "command": "", "code": "", "versions": {}, "levels": [], "parts": [], '
    text = f'{{{rest}"resumed": [], "clients": {{"3": {client}}}}}'
    (tmp_path / "fleet.json").write_text(text % "")
    read_json(tmp_path / "fleet.json", FleetRecord)
    found = told(tmp_path / "fleet.json", text % ', "name": 4', FleetRecord)
    assert found == "clients.3.name is 4: expected a text"


def test_yaml_is_read_as_omegaconf_writes_it(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("a: 1e-3\nb: 1.0e-05\nc: '1e-3'\nd: 2026-01-31\ne: [1, null, true]\n")
    found = {"a": 1e-3, "b": 1e-5, "c": "1e-3", "d": "2026-01-31", "e": [1, None, True]}
    assert read_yaml(file) == found
    assert "found 'a' twice" in told(file, "a: 1\na: 2\n")
    assert "is {}" not in told(file, "a: !!binary aGk=\n")
