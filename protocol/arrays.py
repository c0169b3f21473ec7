"""A slice's tensors on the wire: one flat array per dtype, in the order of the names.

Names and shapes follow from the slice, which both sides build: only values are sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.lib import format as npy
from torch import Tensor

from protocol.reading import ProtocolError, reading, shown

LONGEST_HEADER = 512
"""Most bytes of NumPy's header before the values: 128 for a flat array."""


def pack(state: Mapping[str, Tensor]) -> ArrayRecord:
    """Return a slice's tensors as one flat array per dtype, in the order of the names."""
    groups: dict[str, list[Tensor]] = {}
    for tensor in state.values():
        groups.setdefault(_kind(tensor), []).append(tensor.detach().cpu().reshape(-1))
    return ArrayRecord({kind: Array(torch.cat(flat).numpy()) for kind, flat in groups.items()})


def unpack(record: ArrayRecord, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a packed slice with the names, shapes and dtypes of `like`."""
    expected: dict[str, int] = {}
    for tensor in like.values():
        expected[_kind(tensor)] = expected.get(_kind(tensor), 0) + tensor.numel()
    with reading("arrays", "shape"):
        if set(record) != set(expected):
            found = [shown(kind) for kind in list(record)[:3]]
            raise ProtocolError(f"arrays of {found}, expected {list(expected)}", "shape")
        flat = {kind: _flat(record[kind], kind, size) for kind, size in expected.items()}
    state, taken = {}, dict.fromkeys(flat, 0)
    for name, tensor in like.items():
        kind, size = _kind(tensor), tensor.numel()
        state[name] = flat[kind][taken[kind] : taken[kind] + size].view(tensor.shape)
        taken[kind] += size
    return state


def _flat(array: Array, kind: str, size: int) -> Tensor:
    """Return the values of a flat array of an expected dtype and size.

    The array's header is not trusted: NumPy would allocate memory for as many values as the header
    names, even if few follow. So the header is read first, and the bytes are counted.
    """
    dtype = np.dtype(kind)
    room = dtype.itemsize * size
    if not room < len(array.data) <= room + LONGEST_HEADER:
        raise ProtocolError(f"{len(array.data)} bytes of {kind}, expected {size} values", "shape")
    opened = BytesIO(array.data)
    if npy.read_magic(opened) != (1, 0):
        raise ProtocolError("arrays of another format than .npy 1.0", "shape")
    header = npy.read_array_header_1_0(opened, max_header_size=LONGEST_HEADER)
    left = len(array.data) - opened.tell()
    if header != ((size,), False, dtype) or left != room:
        found = f"{shown(header[0])} of {shown(header[2])} in {left} bytes"
        raise ProtocolError(f"a slice of {found}, expected {size} values of {kind}", "shape")
    # A copy, since the buffer is read-only and tensors are written to.
    return torch.from_numpy(np.frombuffer(array.data, dtype, size, opened.tell()).copy())


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
