"""Archives of numbers: which columns are read of them, and what is told of those that are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.catalog import DataError
from data.clients import device_data
from data.examples import SeriesData
from data.inputs import read_inputs
from data.look import completed
from data.spec import DatasetSpec
from tests.support.own_files import write_photos

X = np.arange(24.0).reshape(8, 3)
Y = np.array(["up", "down"] * 4)


def write(file: Path, x: Any = X, **arrays: Any) -> Path:
    np.savez(file, x=x, y=Y, **arrays)
    return file


def spec_of(path: Path, **settings: Any) -> DatasetSpec:
    return completed(DatasetSpec("table", str(path), **settings))


def first_row(file: Path, spec: DatasetSpec) -> list[float]:
    data = device_data(file, spec).train
    assert isinstance(data, SeriesData)
    found: list[float] = sorted(data.series[:, :, 0].tolist())[0]
    return found


def test_columns_with_names_are_chosen_by_them_in_the_order_of_the_run(tmp_path: Path) -> None:
    file = write(tmp_path / "a.npz", columns=np.array(["ax", "ay", "az"]))
    assert spec_of(file).columns == ("ax", "ay", "az")
    spec = spec_of(file, columns=("az", "ax"), validation=0.0, test=0.0)
    assert spec.columns == ("az", "ax")
    assert first_row(file, spec) == [2, 0]
    other = write(tmp_path / "b.npz", X[:, ::-1], columns=np.array(["az", "ay", "ax"]))
    assert first_row(other, spec) == [2, 0]
    assert isinstance(asked := read_inputs(other, spec).data, SeriesData)
    assert asked.series[0, :, 0].tolist() == [2, 0]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({}, "x has 3 columns without names: expected the run's 2, ax, ay"),
        ({"columns": ["ax", "az", "at"]}, r"x has 3 columns \(ax, az, at\): expected the run's 2"),
        ({"columns": ["ax", "ay"]}, "columns has 2 names, ax, ay, for the 3 columns of x"),
        ({"columns": ["ax", "ay", "ax"]}, "columns has 3 names, ax, ay, ax, for the 3 columns"),
    ],
)
def test_columns_that_an_archive_cannot_serve_are_refused_everywhere(
    tmp_path: Path, more: dict[str, Any], told: str
) -> None:
    run = spec_of(write(tmp_path / "run.npz", X[:, :2], columns=np.array(["ax", "ay"])))
    file = write(tmp_path / "a.npz", **more)
    for read in (
        lambda: spec_of(file, columns=("ax", "ay")),
        lambda: device_data(file, run),
        lambda: read_inputs(file, run),
    ):
        with pytest.raises(DataError, match=rf"a\.npz: {told}"):
            read()


def test_columns_without_names_go_by_their_order_if_there_are_as_many(tmp_path: Path) -> None:
    run = spec_of(write(tmp_path / "run.npz"), validation=0.0, test=0.0)
    assert run.columns == ("0", "1", "2")
    assert first_row(write(tmp_path / "same.npz"), run) == [0, 1, 2]
    for x in (X[:, :2], np.hstack([X, X])):
        file = write(tmp_path / "other.npz", x)
        with pytest.raises(DataError, match=rf"x has {x.shape[1]} columns without names: expected"):
            device_data(file, run)


def test_a_label_is_asked_for_where_there_are_columns(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"dataset\.label is kind, but the labels of an archive"):
        spec_of(write(tmp_path / "a.npz"), label="kind")
    photos = write_photos(tmp_path / "photos", {"cat": 2, "dog": 2})
    with pytest.raises(DataError, match=r"dataset\.label is kind, but .*/photos holds folders"):
        completed(DatasetSpec("folder", str(photos), label="kind"))
