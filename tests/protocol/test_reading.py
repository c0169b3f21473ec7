"""The server reads any bytes of a reply as a value within bounds, or raises ProtocolError."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import example, given, settings
from hypothesis import strategies as st

from protocol import work
from protocol.arrays import pack
from protocol.code import VERSION, code_hash
from protocol.reading import ProtocolError
from protocol.records import footprint, read_slice
from protocol.reports import Evaluation, Profile, Trained

LONGEST_MESSAGE = 500
FORM = {"a": torch.zeros(3, 2), "n": torch.tensor(7), "b": torch.zeros(4)}

numbers = st.one_of(
    st.integers(),
    st.integers(min_value=10**300, max_value=10**400),
    st.floats(),
    st.sampled_from([0, 1, 0.5, -1, 2**53, 2**53 + 1, math.nan, math.inf, 10**5000]),
)
lists = st.one_of(
    st.lists(st.integers(), max_size=4),
    st.lists(st.floats(), max_size=4),
    st.lists(st.floats(0, 1), min_size=2, max_size=2),
)
texts = st.text(max_size=30)
names = st.one_of(
    st.sampled_from(["arrays", "metrics", "profile", "json", "num-examples", "loss", "seconds"]),
    st.sampled_from(["accuracy", "float32", "int64"]),
    texts,
)
arrays = st.builds(
    Array,
    st.sampled_from(["float32", "int64", "object", ""]),
    st.tuples(st.integers()),
    st.sampled_from(["numpy.ndarray", "pickle"]),
    st.binary(max_size=300),
)
any_record = st.one_of(
    st.dictionaries(names, st.one_of(numbers, lists), max_size=4).map(MetricRecord),
    st.dictionaries(names, st.one_of(numbers, texts, st.binary(), lists), max_size=4).map(
        lambda values: ConfigRecord(dict(values))
    ),
    st.dictionaries(names, arrays, max_size=3).map(ArrayRecord),
)
any_content = st.dictionaries(names, any_record, max_size=3).map(RecordDict)
any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
)


def read(reader: Callable[[RecordDict], Any], content: RecordDict) -> Any:
    """Return the value that is read, or None for a refusal, whose text must be short."""
    try:
        return reader(content)
    except ProtocolError as error:
        refusal = error
    assert len(str(refusal)) <= LONGEST_MESSAGE
    assert refusal.reason in ("report", "names", "shape")
    return None


def evaluation(content: RecordDict) -> Evaluation:
    return Evaluation.read(content, exits=2)


def slice_of(content: RecordDict) -> dict[str, torch.Tensor]:
    return read_slice(content, FORM)


@given(any_content)
def test_any_content_is_read_or_refused(content: RecordDict) -> None:
    for reader in (Profile.read, Trained.read, evaluation, slice_of):
        read(reader, content)
    assert footprint(content) >= 0


def profile(**fields: Any) -> RecordDict:
    honest = {"partition": 1, "partitions": 4, "examples": 9, "budget": 0.5, "device": "cpu"}
    said = honest | {"code": code_hash(), "version": VERSION} | fields
    return RecordDict({"profile": ConfigRecord({"json": json.dumps(said)})})


FIELDS = ["partition", "partitions", "examples", "validation", "test", "budget", "device",
          "measured"]  # fmt: skip


@given(st.sampled_from(FIELDS), any_json)
def test_a_profile_of_any_values_is_in_its_bounds_or_refused(field: str, value: Any) -> None:
    found = read(Profile.read, profile(**{field: value}))
    if found is not None:
        for size in (found.examples, found.validation, found.test):
            assert type(size) is int
            assert 0 <= size <= 2**53
        assert type(found.measured) is bool
        assert found.partition is None or 0 <= found.partition < (found.partitions or 10**6)
        assert found.budget is None or 0 < found.budget < math.inf
        assert isinstance(found.device, str)


@given(any_json)
def test_a_profile_of_any_json_is_refused(value: Any) -> None:
    content = RecordDict({"profile": ConfigRecord({"json": json.dumps(value)})})
    assert read(Profile.read, content) is None


@given(st.binary(max_size=3000))
def test_a_profile_of_any_text_is_refused(data: bytes) -> None:
    content = RecordDict({"profile": ConfigRecord({"json": data.decode("latin-1")})})
    assert read(Profile.read, content) is None


@given(numbers | lists, numbers | lists, numbers | lists)
def test_a_report_of_any_numbers_is_in_its_bounds_or_refused(
    examples: Any, loss: Any, seconds: Any
) -> None:
    metrics = MetricRecord({"num-examples": examples, "loss": loss, "seconds": seconds})
    found = read(Trained.read, RecordDict({"metrics": metrics}))
    if found is not None:
        assert type(found.examples) is int
        assert 0 <= found.examples <= 2**53
        assert isinstance(found.loss, float)
        assert 0 <= found.seconds < math.inf


@given(numbers | lists, numbers | lists, numbers | lists)
def test_a_test_result_of_any_numbers_is_in_its_bounds_or_refused(
    examples: Any, accuracy: Any, loss: Any
) -> None:
    metrics = MetricRecord({"num-examples": examples, "accuracy": accuracy, "loss": loss})
    found = read(evaluation, RecordDict({"metrics": metrics}))
    if found is not None:
        assert 0 <= found.examples <= 2**53
        assert len(found.accuracy) == len(found.loss) == 2
        assert all(0 <= share <= 1 for share in found.accuracy)


def reply(floats: bytes) -> RecordDict:
    """An honest reply but for these bytes of its floats."""
    honest = pack(FORM)
    honest["float32"] = Array("float32", (10,), "numpy.ndarray", floats)
    return RecordDict({"arrays": honest, "metrics": MetricRecord()})


HONEST = pack(FORM)["float32"].data


def test_an_honest_slice_is_read() -> None:
    assert read(slice_of, reply(HONEST)) is not None


@given(st.binary(max_size=400))
@example(b"\x93NUMPY\x01\x00\x76\x00" + b"(" * 118 + bytes(40))
@example(b"\x93NUMPY\x01\x00\x76\x00" + b"-" * 117 + b"1" + bytes(40))
def test_any_bytes_in_place_of_arrays_are_refused(data: bytes) -> None:
    assert read(slice_of, reply(data)) is None


@settings(max_examples=300)
@given(st.integers(0, len(HONEST) - 1), st.binary(min_size=1, max_size=20))
def test_arrays_with_any_bytes_changed_are_read_as_such_or_refused(at: int, other: bytes) -> None:
    data = HONEST[:at] + other + HONEST[at + len(other) :]
    found = read(slice_of, reply(data))
    if found is not None:
        assert {name: (t.shape, t.dtype) for name, t in found.items()} == {
            name: (t.shape, t.dtype) for name, t in FORM.items()
        }


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((10**12,), "<f4"), ((10**18, 10**18), "<f4"), ((10,), "<f8"), ((10,), "|O"), ((5, 2), "<f4")],
)
def test_a_header_that_lies_makes_no_room_for_what_it_names(
    shape: tuple[int, ...], dtype: str
) -> None:
    opened = BytesIO()
    described: Any = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(opened, described)
    assert read(slice_of, reply(opened.getvalue() + bytes(40))) is None


def test_a_number_with_more_digits_than_python_writes_is_refused_in_short() -> None:
    metrics = MetricRecord({"num-examples": 10**5000, "loss": 0.1, "seconds": 0.1})
    with pytest.raises(ProtocolError, match="num-examples is a number of 16610 bits"):
        Trained.read(RecordDict({"metrics": metrics}))


def test_what_a_client_unpacks_has_a_limit() -> None:
    packer = zlib.compressobj(9, zdict=work._usual())
    bomb = packer.compress(b"0" * 10**8) + packer.flush()
    assert len(bomb) < 10**6
    with pytest.raises(ProtocolError, match="longer than 1000000 bytes"):
        work._expand(bomb)
    with pytest.raises(ProtocolError, match="cut short"):
        work._expand(bomb[:20])
