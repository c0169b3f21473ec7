"""Tables of numbers of one's own: columns, windows, what is held out, and what is no number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.catalog import DataError
from data.clients import client_data, client_rows, device_data, global_test
from data.examples import UNKNOWN, SeriesData
from data.foreign_files import BrokenFilesError
from data.inputs import read_inputs
from data.look import completed
from data.own_source import own_arrays
from data.partition import client_names
from data.spec import DatasetSpec
from data.splits import own_series
from tests.support.sensor_tables import sensor_table

LINES = ("a,b,label", "1,10,x", "2,10,x", "3,10,y", "5,10,y")


def table(folder: Path, *lines: str, name: str = "t.csv") -> Path:
    file = folder / name
    file.write_text("\n".join(lines or LINES) + "\n")
    return file


def spec_of(path: Path, **settings: Any) -> DatasetSpec:
    return completed(
        DatasetSpec("table", str(path), **{"clients": 1, "classes_per_client": 1, **settings})
    )


def everything(spec: DatasetSpec) -> list[list[list[float]]]:
    """All examples, to train and to test on, in some order."""
    found = own_series(spec)
    together = np.concatenate([found.train.series, found.test.series])
    return sorted(together.tolist())


def test_rows_are_examples_and_all_columns_of_numbers_are_channels(tmp_path: Path) -> None:
    spec = spec_of(table(tmp_path))
    assert spec.holds == "series"
    assert spec.columns == ("a", "b")
    assert spec.classes == ("x", "y")
    assert spec.length == 1
    assert spec.input_shape == {"in_channels": 2, "length": 1}
    assert everything(spec) == [[[1], [10]], [[2], [10]], [[3], [10]], [[5], [10]]]


def test_mean_and_deviation_are_those_of_the_training_examples(tmp_path: Path) -> None:
    spec = spec_of(table(tmp_path))
    train = own_series(spec).train.series[:, 0, 0].astype(float)
    assert len(train) == 2  # one of each class is held out
    assert spec.mean is not None
    assert spec.std is not None
    assert spec.mean == pytest.approx((train.mean(), 10))
    assert spec.std == pytest.approx((abs(train[0] - train[1]) / 2, 1))  # b is constant
    ((series, _),) = client_data(spec, 0).train.batches(9)
    assert sorted(series[:, 0, 0].tolist()) == [-1, 1]
    assert series[:, 1, 0].tolist() == [0, 0]


def test_columns_are_chosen_and_ordered(tmp_path: Path) -> None:
    spec = spec_of(table(tmp_path), columns=("b", "a"))
    assert everything(spec)[0] == [[10], [1]]
    assert spec_of(table(tmp_path), columns=("a",)).input_shape["in_channels"] == 1


def test_the_label_the_owner_and_the_numbers_of_rows_are_no_channels(tmp_path: Path) -> None:
    lines = [",v,who,session,kind", *(f"{n},{n / 2},{n % 2},{n % 3},{n % 2}" for n in range(12))]
    spec = spec_of(
        table(tmp_path, *lines), label="kind", column="who", test_column="session", clients=1
    )
    assert spec.columns == ("v",)
    assert spec.classes == ("0", "1")


def test_windows_are_of_one_class_one_owner_and_one_file(tmp_path: Path) -> None:
    who = ["a", "a", "a", "b", "b", "b", "b", "b", "b", "b"]
    kind = ["x", "x", "x", "x", "x", "x", "y", "y", "y", "y"]
    lines = [
        "v,who,kind",
        *(f"{n},{w},{k}" for n, (w, k) in enumerate(zip(who, kind, strict=True))),
    ]
    table(tmp_path, *lines, name="one.csv")
    table(tmp_path, "v,who,kind", *(f"{n},b,y" for n in (20, 21, 22)), name="two.csv")
    apart = spec_of(tmp_path, label="kind", column="who", window=2)
    assert everything(apart) == [[[0, 1]], [[3, 4]], [[6, 7]], [[8, 9]], [[20, 21]]]
    mixed = spec_of(tmp_path, label="kind", columns=("v",), window=2)
    assert everything(mixed) == [[[0, 1]], [[2, 3]], [[4, 5]], [[6, 7]], [[8, 9]], [[20, 21]]]


def test_windows_are_held_out_and_not_rows(tmp_path: Path) -> None:
    spec = spec_of(
        sensor_table(tmp_path / "t.parquet"), label="activity", column="person", window=12
    )
    found = own_series(spec)
    assert found.train.series.shape[1:] == (2, 12)
    assert len(found.train.labels) + len(found.test.labels) == 4 * 3 * 4
    assert np.bincount(found.test.labels).tolist() == [3, 3, 3]  # a fifth of 16 each
    first = {tuple(each[0].tolist()) for each in found.train.series}
    assert not first & {tuple(each[0].tolist()) for each in found.test.series}


def test_overlapping_windows_share_no_row_with_those_that_are_not_trained_on(
    tmp_path: Path,
) -> None:
    """Rows are numbered, so that the value of a step says which row it is."""
    lines = ["v,who,label", *(f"{n},{n // 300},{n // 100 % 3}" for n in range(900))]
    asked: dict[str, Any] = {"column": "who", "partition": "column", "clients": 3, "window": 10}
    plain = spec_of(table(tmp_path, *lines), **asked)
    spec = spec_of(table(tmp_path, *lines), **asked, stride=5)
    tested = set(own_series(spec).test.series.ravel().tolist())
    assert tested == set(own_series(plain).test.series.ravel().tolist())
    for client in range(3):
        found = client_data(spec, client)
        assert isinstance(found.train, SeriesData)
        assert isinstance(found.validation, SeriesData)
        assert isinstance(found.test, SeriesData)
        assert len(found.train) > len(client_data(plain, client).train)
        assert len(found.test) == len(client_data(plain, client).test)
        trained = set(found.train.series.ravel().tolist())
        for part in (found.validation, found.test):
            assert not trained & set(part.series.ravel().tolist())
        assert not trained & tested
        for series, label in zip(found.train.series, found.train.labels, strict=True):
            first = int(series[0, 0])
            assert series[0].tolist() == list(range(first, first + 10))
            assert first // 100 % 3 == (first + 9) // 100 % 3 == int(label)


def test_people_are_clients(tmp_path: Path) -> None:
    file = sensor_table(tmp_path / "t.parquet")
    spec = spec_of(
        file, label="activity", column="person", partition="column", clients=4, window=12
    )
    assert sorted(client_names(spec)) == [f"person{n}" for n in range(4)]
    dealt = np.concatenate(client_rows(spec))
    assert sorted(dealt.tolist()) == list(range(len(own_series(spec).train.labels)))


def test_whole_people_are_held_out_for_the_test(tmp_path: Path) -> None:
    file = sensor_table(tmp_path / "t.parquet", people=5)
    spec = spec_of(
        file, label="activity", column="person", partition="column", clients=4, window=12,
        test_column="person",
    )  # fmt: skip
    names = set(client_names(spec))
    assert len(names) == 4  # of five, one is the test
    assert len(global_test(spec)) == 3 * 4
    other = spec_of(
        file, label="activity", column="person", partition="column", clients=4, window=12,
        test_column="person", test_seed=1,
    )  # fmt: skip
    assert set(client_names(other)) != names
    two = spec_of(file, label="activity", window=12, test_column="person", test_share=0.4)
    assert len(global_test(two)) == 2 * 3 * 4


def test_groups_and_files_for_the_test_exclude_each_other(tmp_path: Path) -> None:
    table(tmp_path, "v,who,label", "1,a,x", "2,b,y", "3,a,y", "4,b,x", name="train.csv")
    table(tmp_path, "v,label", "1,x", "2,y", name="test.csv")
    assert len(global_test(spec_of(tmp_path, columns=("v",)))) == 2
    with pytest.raises(DataError, match="test_column is who, but there are files for the test"):
        spec_of(tmp_path, columns=("v",), test_column="who")


def test_texts_are_held_out_by_group_too(tmp_path: Path) -> None:
    lines = ["text,label,author", *(f"w{n},{n % 2},{'ann' if n < 4 else 'bob'}" for n in range(8))]
    spec = spec_of(table(tmp_path, *lines), text="text", test_column="author")
    assert len(global_test(spec)) == 4


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ("v,who,label", "1,a,x", "2,a,y"),
            r"who is 'a' everywhere: expected at least 2 groups",
        ),
        (
            ("v,who,label", "1,a,x", "2,b,y"),
            r"class '[xy]' is only in what is held out for the test \(who [ab]\): choose another",
        ),
        (("v,who,label", "1,,x", "2,b,y"), r"t.csv, row 2: no who: expected the name of a group"),
    ],
)
def test_groups_that_cannot_be_held_out_are_said(
    tmp_path: Path, lines: tuple[str, ...], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        spec_of(table(tmp_path, *lines), columns=("v",), test_column="who")


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("", r"t\.csv, row 4: no b: expected a number"),
        ("NaN", r"t\.csv, row 4: no b: expected a number"),
        ("inf", r"t\.csv, row 4: b is inf: expected a number"),
        ("1e39", r"t\.csv, row 4: b is 1e\+39: expected a number"),
        ("many", r"t\.csv, row 4: b is 'many': expected a number"),
    ],
)
@pytest.mark.parametrize("columns", [None, ("a", "b")])
def test_what_is_no_number_is_told_with_file_row_and_column(
    tmp_path: Path, cell: str, message: str, columns: tuple[str, ...] | None
) -> None:
    file = table(tmp_path, *LINES[:3], f"3,{cell},y", *LINES[4:])
    with pytest.raises(BrokenFilesError, match=message):
        spec_of(file, columns=columns)


def test_all_that_is_broken_is_listed(tmp_path: Path) -> None:
    file = table(tmp_path, "a,b,label", "1,1,x", "?,2,x", "3,,y", "4,4,y")
    with pytest.raises(BrokenFilesError, match=r"row 3: a is '\?'.*and 1 more") as caught:
        spec_of(file)
    assert [each.place.rpartition(", ")[2] for each in caught.value.broken] == ["row 3", "row 4"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"columns": ("a", "c")}, r"no column 'c' \(dataset\.columns\); the columns are: a, b, la"),
        ({"columns": ("a", "a")}, "columns are a, a: expected at least 1, each of them once"),
        ({"columns": ("label",), "label": "label"}, "'label' is among columns, but is the label"),
        ({"window": 0}, "window is 0: expected at least 1"),
        ({"window": 3}, r"window is 3, but no 3 rows from .*t\.csv, row 2 on are of one class"),
        ({"window": 2, "stride": 3}, "stride is 3: expected a divisor of window, 2"),
        ({"stride": 0}, "stride is 0: expected a divisor of window, 1"),
        ({"window": 2, "text": "a"}, "window is 2, which is for tables of numbers, but this is"),
        ({"std": (1.0, 0.0)}, r"std is \[1\.0, 0\.0\]: expected finite numbers, above 0"),
        ({"columns": ("a",), "mean": (1.0, 2.0)}, "expected a number for each of 1 channels"),
        ({"column": "who"}, r"no column 'who' \(dataset\.column\); the columns are: a, b, label"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        spec_of(table(tmp_path), **settings)


def test_a_table_of_texts_alone_asks_for_the_column_of_texts(tmp_path: Path) -> None:
    file = table(tmp_path, "body,label", "good,x", "bad,y")
    with pytest.raises(DataError, match=r"no column of numbers; which .* to one of: body, label"):
        spec_of(file)


def test_arrays_of_rows_and_of_series_are_read(tmp_path: Path) -> None:
    labels = np.array([0, 0, 0, 1, 1, 1])
    rows = np.arange(12, dtype=np.float64).reshape(6, 2)
    np.savez(tmp_path / "rows.npz", x=rows, y=labels)
    by_row = spec_of(tmp_path / "rows.npz")
    assert by_row.columns == ("0", "1")
    assert everything(by_row)[1] == [[2], [3]]
    who = np.array(["a", "a", "a", "a", "b", "b", "b", "b"])
    steps = np.arange(8)[:, None]
    np.savez(tmp_path / "whose.npz", x=steps, y=np.array([0, 0, 1, 1, 0, 0, 1, 1]), who=who)
    by_window = spec_of(tmp_path / "whose.npz", window=2, column="who", test_column="who")
    assert everything(by_window) == [[[0, 1]], [[2, 3]], [[4, 5]], [[6, 7]]]
    assert len(global_test(by_window)) == 2


def test_arrays_of_series_are_examples_as_they_are(tmp_path: Path) -> None:
    series = np.arange(24, dtype=np.float32).reshape(4, 3, 2)  # steps, then columns
    np.savez(tmp_path / "s.npz", x=series, y=np.array(["up", "up", "down", "down"]))
    spec = spec_of(tmp_path / "s.npz")
    assert spec.length == 3
    assert everything(spec)[0] == [[0, 2, 4], [1, 3, 5]]
    with pytest.raises(DataError, match=r"x is of shape \(4, 3, 2\), series already: expected"):
        spec_of(tmp_path / "s.npz", window=2)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.array([[0.0], [np.nan], [1.0], [2.0]]), r"row 1: column 0 holds a value that is no f"),
        (np.zeros(4), r"x is float64 of shape \(4,\): expected numbers"),
        (np.array([["a"], ["b"], ["c"], ["d"]]), "expected numbers"),
        (np.zeros((3, 2)), "3 examples and 4 labels: expected one each"),
    ],
)
def test_arrays_that_hold_no_numbers_are_refused(tmp_path: Path, x: Any, message: str) -> None:
    np.savez(tmp_path / "t.npz", x=x, y=np.array([0, 0, 1, 1]))
    with pytest.raises(DataError, match=message):
        spec_of(tmp_path / "t.npz")


def test_a_device_has_the_runs_columns_and_windows_in_its_own_file(tmp_path: Path) -> None:
    spec = spec_of(
        sensor_table(tmp_path / "run.parquet"), label="activity", column="person",
        test_column="person", partition="column", clients=3, window=12, validation=0.0, test=0.0,
    )  # fmt: skip
    lines = ["activity,ay,more,ax", *(f"walk,{n},0,{-n}" for n in range(25))]
    found = device_data(table(tmp_path, *lines, name="mine.csv"), spec).train
    assert isinstance(found, SeriesData)
    assert found.labels.tolist() == [spec.facts.label_of("walk")] * 2
    assert found.series[0, 0].tolist() == [-n for n in range(12)]  # ax, as in the run
    lines = ["activity,ax,ay", *(f"swim,{n},{n}" for n in range(12))]
    with pytest.raises(DataError, match="is of the class 'swim', which the run does not know"):
        device_data(table(tmp_path, *lines, name="other.csv"), spec)
    with pytest.raises(DataError, match=r"no column 'ay' \(dataset.columns\)"):
        device_data(table(tmp_path, "activity,ax", "walk,1", name="less.csv"), spec)
    np.savez(
        tmp_path / "s.npz", x=np.zeros((4, 5, 2)), y=np.array(["walk"] * 4), columns=["ax", "ay"]
    )
    with pytest.raises(DataError, match=r"x is of shape \(4, 5, 2\), series already"):
        device_data(tmp_path / "s.npz", spec)


def test_inputs_to_answer_for_are_windows_named_by_their_first_row(tmp_path: Path) -> None:
    spec = spec_of(
        sensor_table(tmp_path / "run.parquet"), label="activity", column="person", window=12
    )
    lines = ["ax,ay", *(f"{n},{2 * n}" for n in range(26))]
    asked = read_inputs(table(tmp_path, *lines, name="new.csv"), spec)
    assert asked.names == ("new.csv:0", "new.csv:12")
    assert not asked.labelled
    assert asked.data.labels.tolist() == [UNKNOWN, UNKNOWN]
    assert isinstance(asked.data, SeriesData)
    assert asked.data.series[1, 1].tolist() == [2 * n for n in range(12, 24)]
    told = read_inputs(tmp_path / "run.parquet", spec)
    assert told.labelled
    assert len(told.names) == 4 * 3 * 4
    assert told.names[4] == "run.parquet:48"


def test_arrays_to_answer_for_need_no_labels(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", x=np.arange(8.0).reshape(4, 2), y=np.array([0, 0, 1, 1]))
    spec = spec_of(tmp_path / "t.npz")
    np.savez(tmp_path / "new.npz", x=np.zeros((3, 2)))
    assert read_inputs(tmp_path / "new.npz", spec).names == ("new.npz:0", "new.npz:1", "new.npz:2")
    assert read_inputs(tmp_path / "t.npz", spec).labelled
    np.savez(tmp_path / "wide.npz", x=np.zeros((3, 3)))
    with pytest.raises(DataError, match="x has 3 columns without names: expected the run's 2"):
        read_inputs(tmp_path / "wide.npz", spec)


def test_reading_does_not_depend_on_how_data_is_dealt_out(tmp_path: Path) -> None:
    file = sensor_table(tmp_path / "t.parquet")
    one = spec_of(file, label="activity", column="person", window=12)
    two = spec_of(
        file, label="activity", column="person", window=12, partition="column", clients=4, seed=3
    )
    assert own_arrays(one) is own_arrays(two)


def test_a_header_alone_holds_no_examples(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^no examples in .*head\.csv$"):
        spec_of(table(tmp_path, "ax,activity", name="head.csv"), label="activity")
