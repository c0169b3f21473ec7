"""Files that others wrote cannot hold a run up, nor fill its memory."""

from __future__ import annotations

import gzip
import io
import os
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.catalog import DataError
from data.clients import splits_of
from data.formats import GROWTH, SMALL, opened_npz
from data.inputs import read_inputs
from data.language_source import read_lines
from data.look import completed
from data.parquet import open_parquet
from data.spec import DatasetSpec
from data.tables import columns_of, read_table_file
from data.tokens import encode
from tests.support.own_files import photos, table

REFUSED = "is a named pipe: expected a regular file"


def own(kind: str, **settings: Any) -> Callable[[Path], object]:
    make = photos if kind == "photos" else table
    return lambda folder: completed(make(folder, **settings))


def known(name: str) -> Callable[[Path], object]:
    return lambda folder: splits_of(DatasetSpec(name, str(folder)))


@pytest.mark.parametrize(
    ("names", "read"),
    [
        (["cat/1.png", "dog/2.png"], own("photos")),
        (["train.npz"], own("photos")),
        (["train.parquet"], own("photos")),
        (["train.csv"], own("table", text="body")),
        (["train.jsonl"], own("table", text="body")),
        (["train.arrow"], own("table", text="body")),
        (["train.npz"], own("table", text=None, label=None, window=2)),
        (["0/1.png", "1/2.png"], known("mnist")),
        (["train-images-idx3-ubyte", "train-labels-idx1-ubyte"], known("mnist")),
        (["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"], known("mnist")),
        (["train.npz"], known("cifar10")),
        (["train.parquet"], known("cifar10")),
        (["train.parquet"], known("sst2")),
        (["train.csv"], known("sst2")),
        (["wiki.train.tokens"], known("wikitext2")),
        (["wiki.train.tokens.gz"], known("wikitext2")),
        (["train.parquet"], known("wikitext2")),
        (["new.png"], lambda folder: read_inputs(folder, DatasetSpec("mnist"))),
        (["new.parquet"], lambda folder: read_inputs(folder, DatasetSpec("mnist"))),
        (["new.csv"], lambda folder: read_inputs(folder, DatasetSpec("sst2"))),
        (["tokenizer.json"], lambda folder: encode(["a"], str(folder), 8)),
        (["mine.json"], lambda folder: encode(["a"], str(folder / "mine.json"), 8)),
    ],
)
def test_nothing_waits_for_the_writer_of_a_named_pipe(
    names: list[str], read: Callable[[Path], object], tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match=f"{names[0]}.* {REFUSED}"):
        read(tmp_path)


def write_claims(file: Path, shape: tuple[int, ...], content: bytes) -> Path:
    """Write an archive whose array claims a shape that its content may not have."""
    header = io.BytesIO()
    claims = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, claims)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("x.npy", header.getvalue() + content)
    return file


@pytest.mark.parametrize("claimed", [(10**13, 8, 8), (5,), (2, 2)])
def test_an_array_that_is_not_what_its_header_claims_is_not_made(
    claimed: tuple[int, ...], tmp_path: Path
) -> None:
    file = write_claims(tmp_path / "x.npz", claimed, b"abc")
    with (
        pytest.raises(DataError, match=r"x.npz: x.npy claims the shape .* but has 3"),
        opened_npz(file),
    ):
        pass
    with opened_npz(write_claims(tmp_path / "true.npz", (3,), b"abc")) as archive:
        assert archive["x"].tobytes() == b"abc"


def test_a_member_of_an_archive_that_is_no_array_is_named(tmp_path: Path) -> None:
    for name in ("x", "x.npy"):
        with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
            archive.writestr(name, b"no array")
        with (
            pytest.raises(DataError, match=rf"x.npz: {name} is no array of numbers or texts"),
            opened_npz(tmp_path / "x.npz"),
        ):
            pass


def test_what_unpacks_to_far_more_than_its_size_is_refused(tmp_path: Path) -> None:
    zeros = bytes(SMALL + 1)
    refused = rf"would take more than {SMALL >> 20} MiB of memory, for .* or {GROWTH} times"
    (tmp_path / "train.tokens.gz").write_bytes(gzip.compress(zeros, 1))
    with pytest.raises(DataError, match=rf"train.tokens.gz {refused}"):
        read_lines(tmp_path / "train.tokens.gz")
    file = write_claims(tmp_path / "x.npz", (len(zeros),), zeros)
    with pytest.raises(DataError, match=rf"x.npz {refused}"), opened_npz(file):
        pass


@pytest.fixture(scope="module")
def bomb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A parquet file of 40 kB whose one column of texts takes 320 MB in memory."""
    file = tmp_path_factory.mktemp("bomb") / "train.parquet"
    texts = pa.DictionaryArray.from_arrays(np.zeros(16_000, np.int32), ["x" * 1000])
    part = pa.table({"stars": texts.cast(pa.string())})
    with pq.ParquetWriter(file, part.schema, compression="zstd") as writer:
        for _ in range(20):
            writer.write_table(part)
    assert file.stat().st_size < 100_000
    return file


def most_taken() -> int:
    return int(pa.default_memory_pool().max_memory())


def taken(read: Callable[[], object], message: str) -> int:
    """Return the bytes that Arrow took more than ever before, until it was refused."""
    before = most_taken()
    with pytest.raises(DataError, match=message):
        read()
    return most_taken() - before


def test_a_column_that_is_missing_is_told_before_any_is_read(bomb: Path) -> None:
    asked = "no column 'body'.* the columns are: stars"
    assert taken(lambda: completed(table(bomb, text="body", label="stars")), asked) < 2**20
    asked = "which column holds the classes.* stars"
    assert taken(lambda: completed(table(bomb, text="stars", label=None)), asked) < 2**20
    for name in ("cifar10", "sst2", "wikitext2"):
        assert (
            taken(partial(splits_of, DatasetSpec(name, str(bomb))), "no column .*: stars") < 2**20
        )
    asked = "no column img or image"
    assert taken(lambda: read_inputs(bomb, DatasetSpec("cifar10")), asked) < 2**20


def test_texts_that_are_stored_once_for_many_rows_are_read_up_to_a_limit(bomb: Path) -> None:
    refused = f"train.parquet would take more than {SMALL >> 20} MiB of memory"
    assert taken(lambda: read_table_file(bomb), refused) < 1.5 * SMALL


def test_numbers_that_are_stored_once_for_many_rows_are_counted_before(tmp_path: Path) -> None:
    file = tmp_path / "train.parquet"
    part = pa.table({"x": np.zeros(2**22)})
    with pq.ParquetWriter(file, part.schema) as writer:
        for _ in range(9):
            writer.write_table(part)
    before = most_taken()
    refused = f"train.parquet would take more than {SMALL >> 20} MiB of memory"
    assert taken(lambda: open_parquet(file), refused) < 2**20
    assert columns_of(file).table.column_names == ["x"]
    assert most_taken() == before


def test_a_table_is_read_whole_in_its_order_with_its_notes(tmp_path: Path) -> None:
    """Rows are read a few at a time, texts of a dictionary fewer."""
    rows = 100_000
    made = pa.table(
        {
            "image": [{"bytes": b"%d" % row, "path": None} for row in range(rows)],
            "name": pa.array(["much the same"] * rows).dictionary_encode(),
            "long": ["a text of some length" * 50] * rows,
            "list": [[row, 1] for row in range(rows)],
        }
    ).replace_schema_metadata({"huggingface": "{}"})
    pq.write_table(made, tmp_path / "t.parquet")
    whole = pq.read_table(tmp_path / "t.parquet")
    assert open_parquet(tmp_path / "t.parquet").equals(whole, check_metadata=True)
    some = open_parquet(tmp_path / "t.parquet", lambda schema: ["long", "image"])
    assert some.equals(whole.select(["long", "image"]), check_metadata=True)
