"""Texts of one's own, in every kind of table: any labels, and errors with file and row."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.catalog import DataError
from data.clients import device_data
from data.examples import TextData
from data.inputs import read_inputs
from data.listing import guessed
from data.look import completed
from data.spec import DatasetSpec
from data.splits import splits_of
from data.tables import read_tables
from data.tokens import encode
from tests.support.own_files import reviews, table, write_csv, write_photos


def write_table(file: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows in the format that the file's name asks for."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".csv":
        return write_csv(file, rows)
    if file.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    elif file.suffix == ".arrow":
        datasets.Dataset.from_list(rows).save_to_disk(str(file))
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl", ".ndjson", ".json", ".arrow"])
def test_each_kind_of_file_gives_the_same_examples(tmp_path: Path, suffix: str) -> None:
    spec = table(write_table(tmp_path / f"reviews{suffix}", reviews()))
    assert spec.classes == ("1", "2", "3")
    train, test = splits_of(spec)
    assert (len(train.labels), len(test.labels)) == (24, 6)
    by_text = {f"word{row} here": row % 3 for row in range(30)}
    words = {tuple(encode([text], None, 128)[0]): label for text, label in by_text.items()}
    for split in (train, test):
        for tokens, label in zip(split.tokens, split.labels, strict=True):  # type: ignore[union-attr]
            assert words[tuple(tokens)] == label


@pytest.mark.parametrize("name", ["data/train-0.csv data/test-0.csv", "train/a.csv test/a.csv"])
def test_the_test_is_of_the_files_whose_names_or_folders_say_so(tmp_path: Path, name: str) -> None:
    train, test = name.split()
    write_table(tmp_path / train, reviews(9))
    write_table(tmp_path / test, reviews(3))
    splits = splits_of(table(tmp_path))
    assert (len(splits.train.labels), len(splits.test.labels)) == (9, 3)


def test_a_test_whose_labels_are_not_published_gives_way_to_validation(tmp_path: Path) -> None:
    features = datasets.Features(
        {"body": datasets.Value("string"), "stars": datasets.ClassLabel(names=["bad", "good"])}
    )

    def write(name: str, labels: list[int]) -> None:
        rows = {"body": [f"text {label}" for label in labels], "stars": labels}
        datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / name)

    write("train.parquet", [0, 1, 1])
    write("test.parquet", [-1, -1])
    write("validation.parquet", [1, 0])
    spec = table(tmp_path)
    assert spec.classes == ("bad", "good")
    assert splits_of(spec).test.labels.tolist() == [1, 0]
    assert completed(replace(spec, classes=None)).classes == ("bad", "good")


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["good", "bad", " good "], ("bad", "good")),
        ([10, 9, 9], ("9", "10")),
        ([True, False, True], ("false", "true")),
        ([1.0, 2.0, 1.0], ("1", "2")),
        (["1", "two", "1"], ("1", "two")),
    ],
)
def test_labels_may_be_any_text_or_whole_numbers(
    tmp_path: Path, labels: list[Any], classes: tuple[str, ...]
) -> None:
    rows = [{"body": f"text {n}", "stars": label} for n, label in enumerate(labels * 2)]
    assert table(write_table(tmp_path / "a.parquet", rows)).classes == classes


def test_a_text_that_looks_like_a_number_stays_a_text(tmp_path: Path) -> None:
    rows = [{"body": f"0{n}", "stars": n % 2} for n in range(4)]
    spec = table(write_csv(tmp_path / "numbers.csv", rows))
    texts = read_tables([tmp_path / "numbers.csv"], ["body"]).table.column("body").to_pylist()
    assert texts == ["00", "01", "02", "03"]
    assert len(splits_of(spec).train.labels) == 2


def test_rows_know_their_file_and_their_line(tmp_path: Path) -> None:
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for file in files:
        write_csv(file, reviews(3))
    rows = read_tables(files)
    assert [rows.place(row) for row in (0, 2, 3)] == [
        *(f"{files[0]}, row 2", f"{files[0]}, row 4", f"{files[1]}, row 2"),
    ]


def test_a_device_s_table_has_the_columns_and_the_classes_of_the_run(tmp_path: Path) -> None:
    spec = table(write_csv(tmp_path / "run.csv", reviews()))
    own = [{"id": n, "body": "text", "stars": 3} for n in range(10)]
    data = device_data(write_table(tmp_path / "own.jsonl", own), replace(spec, path=None))
    assert data.train.labels.tolist() == [2] * 8
    write_csv(tmp_path / "other.csv", [{"body": "text", "stars": 4}])
    with pytest.raises(
        DataError, match=r"other\.csv, row 2 is of the class '4', which the run doe"
    ):
        device_data(tmp_path / "other.csv", spec)


def test_inputs_to_answer_for_are_in_the_run_s_column_with_or_without_labels(
    tmp_path: Path,
) -> None:
    spec = table(write_csv(tmp_path / "run.csv", reviews()))
    labelled = read_inputs(write_table(tmp_path / "new" / "a.jsonl", reviews(4)), spec)
    assert labelled.labelled
    assert labelled.names == ("a.jsonl:0", "a.jsonl:1", "a.jsonl:2", "a.jsonl:3")
    assert isinstance(labelled.data, TextData)
    assert labelled.data.labels.tolist() == [0, 1, 2, 0]
    plain = write_csv(tmp_path / "plain.csv", [{"body": "a text of several words"}])
    assert not read_inputs(plain, spec).labelled


def test_what_a_path_holds_is_guessed(tmp_path: Path) -> None:
    assert guessed(write_csv(tmp_path / "a.csv", reviews(2))) == "table"
    assert guessed(write_photos(tmp_path / "photos", {"cat": 1})) == "folder"
    pq.write_table(pa.table({"image": [b"x"], "label": [0]}), tmp_path / "images.parquet")
    assert guessed(tmp_path / "images.parquet") == "folder"
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataError, match=r"no images and no tables in .*nothing: expected one f"):
        guessed(tmp_path / "nothing")


# --- what is wrong -------------------------------------------------------------------------------


def test_a_column_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "reviews.csv", reviews(4))
    with pytest.raises(DataError, match=r"reviews\.csv: no column 'text' \(dataset\.text\); the c"):
        table(file, text="text")
    with pytest.raises(
        DataError, match=r"no column 'label' \(dataset\.label\); the columns are: b"
    ):
        table(file, label="label")
    with pytest.raises(
        DataError, match=r"which column holds the texts\? Set dataset\.text to one "
    ):
        table(file, text=None)
    with pytest.raises(
        DataError, match=r"which column holds the classes\? Set dataset\.label to o"
    ):
        table(file, label=None)
    with pytest.raises(
        DataError, match=r"no column 'who' \(dataset\.column\); the columns are: bo"
    ):
        table(file, column="who")


def test_rows_without_a_label_are_told_with_their_line(tmp_path: Path) -> None:
    rows = [*reviews(4), {"body": "none", "stars": "", "user": "u"}]
    with pytest.raises(DataError, match=r"a\.csv, row 6: no stars: expected a class$"):
        table(write_csv(tmp_path / "a.csv", rows))
    rows = [*reviews(4), {"body": None, "stars": 2, "user": "u"}]
    with pytest.raises(DataError, match=r"a\.jsonl, row 5: body is None: expected a text"):
        table(write_table(tmp_path / "a.jsonl", rows))
    rows = [*reviews(4), {"body": "half", "stars": 2.5, "user": "u"}]
    with pytest.raises(DataError, match=r"row 4: stars is 2\.5: expected a text or a whole number"):
        table(write_table(tmp_path / "a.parquet", rows))


def test_rows_that_cannot_be_read_are_told_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("body,stars\nfine,1\nno label\ntoo,many,cells\n")
    with pytest.raises(
        DataError, match=r"a\.csv, row 3: 1 cells: expected 2, .*; and 1 more, whic"
    ):
        table(tmp_path / "a.csv")
    (tmp_path / "a.jsonl").write_text('{"body": "fine", "stars": 1}\n{broken\n[1]\n')
    with pytest.raises(
        DataError, match=r"a\.jsonl, row 2: no JSON .*; and 1 more, which `nestfl d"
    ):
        table(tmp_path / "a.jsonl")


def test_columns_of_one_name_are_told(tmp_path: Path) -> None:
    for header, name in (("body,stars,stars", "stars"), ("body,stars,,", "")):
        cells = ",1" * header.count(",")
        (tmp_path / "a.csv").write_text(f"{header}\nw{cells}\n")
        with pytest.raises(DataError, match=rf"a\.csv: more than one column has the name '{name}'"):
            table(tmp_path / "a.csv")
    column = pa.array([1, 2])
    pq.write_table(
        pa.Table.from_arrays([column] * 3, names=["x", "x", "stars"]), tmp_path / "a.parquet"
    )
    with pytest.raises(DataError, match=r"a\.parquet: more than one column has the name 'x': exp"):
        table(tmp_path / "a.parquet", text=None)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "latin-1"])
def test_a_csv_of_another_encoding_is_told(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.csv").write_text("body,stars,übrig\nw,1,2\nv,2,1\n", encoding=encoding)
    with pytest.raises(DataError, match=r"a\.csv: its first line is no text in UTF-8"):
        table(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("body,stars\nw,ä\nv,b\n", encoding="latin-1")
    with pytest.raises(DataError, match=r"b\.csv cannot be read: .*invalid UTF8 data"):
        table(tmp_path / "b.csv")


def test_brackets_in_brackets_are_told_with_their_line(tmp_path: Path) -> None:
    fine = '{"body": "fine", "stars": 1}\n'
    (tmp_path / "a.jsonl").write_text(f"{fine}{'[' * 100_000}\n")
    with pytest.raises(DataError, match=r"a\.jsonl, row 2: no JSON .*: expected an object on each"):
        table(tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    "notes", ["[" * 100_000, '{"info": {"features": {"stars": {"names": 5}}}}']
)
def test_notes_in_a_file_that_say_nothing_are_passed_over(tmp_path: Path, notes: str) -> None:
    rows = pa.Table.from_pylist(reviews(9)).replace_schema_metadata({"huggingface": notes})
    pq.write_table(rows, tmp_path / "a.parquet")
    assert table(tmp_path / "a.parquet").classes == ("1", "2", "3")


def test_a_text_of_several_lines_is_in_one_row(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('body,stars\n"two\nlines",1\n\nfine,2\nwithout,\n')
    with pytest.raises(DataError, match=r"a\.csv, row 4: no stars: expected a class"):
        table(tmp_path / "a.csv")


def test_a_label_out_of_range_of_the_file_s_own_classes_is_told(tmp_path: Path) -> None:
    features = datasets.Features(
        {"body": datasets.Value("string"), "stars": datasets.ClassLabel(names=["bad", "good"])}
    )
    data = datasets.Dataset.from_dict({"body": ["a", "b"], "stars": [0, 1]}, features=features)
    rows = data.data.table.set_column(1, "stars", pa.array([0, 2]))
    pq.write_table(
        rows.replace_schema_metadata(data.data.table.schema.metadata), tmp_path / "a.parquet"
    )
    with pytest.raises(
        DataError, match=r"row 1: stars is 2: expected 0 to 1, the classes of the f"
    ):
        table(tmp_path / "a.parquet")


def test_other_wrong_tables_are_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no table in .*empty: expected files such as \*\.parquet"):
        table(tmp_path / "empty")
    with pytest.raises(DataError, match="not there does not exist"):
        table(tmp_path / "not there")
    (tmp_path / "header.csv").write_text("body,stars\n")
    with pytest.raises(DataError, match=r"no examples in .*header\.csv"):
        table(tmp_path / "header.csv")
    with pytest.raises(DataError, match="has not been looked at"):
        _ = DatasetSpec("table", str(tmp_path)).facts
