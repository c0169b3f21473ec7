"""Classes and clients of tables: the same text is the same class in every file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from data.catalog import DataError, UnknownClassError
from data.clients import device_data
from data.inputs import read_inputs
from data.look import completed
from data.partition import client_names
from data.spec import DatasetSpec
from data.splits import splits_of
from data.tables import as_classes, as_names, read_tables
from tests.support.own_files import table


def write_csv(file: Path, labels: list[str], users: list[str] | None = None) -> Path:
    users = users or ["u"] * len(labels)
    rows = [f"text {n},{label},{users[n]}" for n, label in enumerate(labels)]
    file.write_text("\n".join(["body,stars,user", *rows]) + "\n")
    return file


def write_lines(file: Path, labels: list[Any]) -> Path:
    rows = [json.dumps({"body": f"text {n}", "stars": each}) for n, each in enumerate(labels)]
    file.write_text("\n".join(rows) + "\n")
    return file


@pytest.mark.parametrize(
    ("written", "classes"),
    [
        (["2", "10", "1"], ["2", "10", "1"]),
        (["01", "1", "2"], ["01", "1", "2"]),
        (["1.0", "2.0", ""], ["1", "2", None]),
        (["1", "2.0", "NA"], ["1", "2", None]),
        (["1.5", "2"], [None, "2"]),
        (["1.0", "beta"], ["1.0", "beta"]),
        (["NA", "beta", ""], ["NA", "beta", None]),
        (["True", "false", ""], ["true", "false", None]),
        (["2026-01-31", " b "], ["2026-01-31", "b"]),
    ],
)
def test_what_is_written_in_a_csv_is_the_class(
    written: list[str], classes: list[str | None], tmp_path: Path
) -> None:
    rows = read_tables([write_csv(tmp_path / "t.csv", written)], ["stars"])
    found, broken = rows.labels("stars")
    assert found == classes
    assert len(broken) == classes.count(None)


def test_files_of_one_data_set_agree_on_what_a_class_is_called(tmp_path: Path) -> None:
    """Those to train on would be whole numbers by their look, and those to test on texts."""
    data, own = tmp_path / "data", tmp_path / "own.csv"
    data.mkdir()
    write_csv(data / "train.csv", ["01", "02"] * 4)
    write_csv(data / "test.csv", ["01", "02", "1x"])
    with pytest.raises(UnknownClassError, match=r"test\.csv, row 4 is of the class '1x'"):
        splits_of(table(data))
    write_csv(data / "test.csv", ["01", "02"])
    spec = table(data, validation=0.0, test=0.0)
    assert spec.classes == ("01", "02")
    assert splits_of(spec).test.labels.tolist() == [0, 1]
    assert read_inputs(write_csv(own, ["02", "01"]), spec).data.labels.tolist() == [1, 0]
    assert device_data(own, spec).train.labels.tolist() == [1, 0]
    with pytest.raises(UnknownClassError, match="is of the class '1', which the run does not"):
        device_data(write_csv(tmp_path / "other.csv", ["1", "01"]), spec)


def test_whole_numbers_are_in_the_order_of_numbers(tmp_path: Path) -> None:
    assert table(write_csv(tmp_path / "t.csv", ["10", "9", "1"] * 3)).classes == ("1", "9", "10")


def test_clients_are_called_what_is_written(tmp_path: Path) -> None:
    labels, users = ["1", "2"] * 12, [user for user in ("01", "1", "7") for _ in range(8)]
    settings = {"partition": "column", "column": "user", "clients": 3}
    spec = table(write_csv(tmp_path / "t.csv", labels, users), **settings)
    assert sorted(client_names(spec)) == ["01", "1", "7"]
    users[4] = "NA"
    with pytest.raises(DataError, match=r"u\.csv, row 6: no user: expected the name of a client"):
        table(write_csv(tmp_path / "u.csv", labels, users), **settings)


@pytest.mark.parametrize(
    ("written", "names"),
    [
        (["1", "1.0", "01"], ["1", "1", "01"]),
        (["1e+16", "10000000000000000"], ["10000000000000000"] * 2),
        (["12345678901234567.0", "-0.0", "1.5"], ["12345678901234567", "0", "1.5"]),
        (["1e400", "1."], ["1e400", "1"]),
        (["1.0", "x"], ["1.0", "x"]),
    ],
)
def test_a_whole_number_with_a_point_is_that_number(written: list[str], names: list[str]) -> None:
    assert as_names(written) == names


def test_people_are_the_same_in_a_file_whose_numbers_have_a_point(tmp_path: Path) -> None:
    """As pandas writes whole numbers of which some were missing."""
    labels, users = ["a", "b"] * 12, [user for user in "123" for _ in range(8)]
    write_csv(tmp_path / "a.csv", labels, users)
    write_csv(tmp_path / "b.csv", labels, [f"{user}.0" for user in users])
    settings = {"partition": "column", "column": "user", "clients": 3}
    assert sorted(client_names(table(tmp_path, **settings))) == ["1", "2", "3"]
    splits = splits_of(table(tmp_path, test_column="user", test_share=0.34))
    assert (len(splits.train.labels), len(splits.test.labels)) == (32, 16)


def test_a_class_that_is_known_is_read_as_it_is_written(tmp_path: Path) -> None:
    """A file of a device's may have that class alone, which would be read otherwise there."""
    write_csv(tmp_path / "regions.csv", ["NA", "EU"] * 6)
    spec = table(tmp_path / "regions.csv", validation=0.0, test=0.0)
    assert spec.classes == ("EU", "NA")
    own = write_csv(tmp_path / "own.csv", ["NA"] * 4)
    assert device_data(own, spec).train.labels.tolist() == [1] * 4
    assert read_inputs(own, spec).data.labels.tolist() == [1] * 4
    assert as_classes(["1.0", "2.0"], ("1.0", "beta")) == ["1.0", "2"]
    assert as_classes(["NA", "1.0"], ("1", "2")) == [None, "1"]


def test_numbers_and_texts_of_json_lines_are_the_same_class_or_are_told(tmp_path: Path) -> None:
    write_lines(tmp_path / "train.jsonl", [1, 2] * 4)
    write_lines(tmp_path / "test.jsonl", ["1", "2"])
    spec = table(tmp_path)
    assert spec.classes == ("1", "2")
    assert splits_of(spec).test.labels.tolist() == [0, 1]
    write_lines(tmp_path / "train-2.jsonl", ["a", "b"])
    with pytest.raises(
        DataError, match=r"train\.jsonl: stars is of type int64, but string in .*train-2\.jsonl"
    ):
        completed(DatasetSpec("table", str(tmp_path), text="body", label="stars"))


def test_an_empty_column_has_no_classes() -> None:
    assert as_classes(["", "NA", None]) == [None, None, None]
