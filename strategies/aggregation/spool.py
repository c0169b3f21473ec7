"""Keeps the updates of a round on disk, for aggregators that need all of them first.

The file has no name: it disappears with the last reference to the spool, also after an error, and
at the latest with the process. It is in the system's folder for temporary files; TMPDIR names
another folder.
"""

from __future__ import annotations

import math
import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from models.slicing import SliceMap
from strategies.aggregation.update import Update


@dataclass(frozen=True)
class Spooled:
    """An update whose tensors are on disk."""

    update: Update
    """The update without its state."""
    offsets: dict[str, int]
    """Start of each tensor in the file, in bytes."""


class Spool:
    """Writes updates of the right form, and reads them back whole or a range at a time."""

    def __init__(self) -> None:
        self.kept: list[Spooled] = []
        self._end = 0
        self._file: int | None = None
        self._maps: weakref.WeakKeyDictionary[SliceMap, SliceMap] = weakref.WeakKeyDictionary()

    def add(self, update: Update) -> None:
        """Write an update's tensors; without enough room raise `OSError` and keep none of them."""
        offsets, end = {}, self._end
        try:
            for name, tensor in update.state.items():
                offsets[name] = end
                end = self._write(tensor, end)
        except OSError as error:
            raise OSError(
                error.errno,
                f"a round's replies do not fit in {tempfile.gettempdir()}, where the aggregation "
                f"keeps them until all are there ({error.strerror}); TMPDIR names another folder",
            ) from error
        self.kept.append(Spooled(replace(update, state={}, map=self._light(update.map)), offsets))
        self._end = end

    def updates(self) -> Iterator[Update]:
        """Read the updates back in order of arrival."""
        return self._read_back(self.kept)

    def by_client(self) -> Iterator[Update]:
        """Read the updates back in order of client number."""
        return self._read_back(sorted(self.kept, key=_client_and_level))

    def _read_back(self, kept: Iterable[Spooled]) -> Iterator[Update]:
        for spooled in kept:
            regions = spooled.update.map.regions
            state = {
                name: self.read(
                    offset, 0, math.prod(regions[name].shape), regions[name].dtype
                ).view(regions[name].shape)
                for name, offset in spooled.offsets.items()
            }
            yield replace(spooled.update, state=state)

    def read(self, offset: int, first: int, last: int, dtype: torch.dtype) -> Tensor:
        """Return the entries from `first` to before `last` of the tensor at `offset`."""
        values = torch.empty(last - first, dtype=dtype)
        left = values.view(torch.uint8).numpy().data
        offset += first * dtype.itemsize
        while left:
            # One call may read only a part.
            count = os.preadv(self._opened(), [left], offset)
            if not count:
                raise OSError(f"a round's replies in {tempfile.gettempdir()} were cut short")
            left, offset = left[count:], offset + count
        return values

    def _write(self, tensor: Tensor, offset: int) -> int:
        whole = tensor.detach().cpu().contiguous()
        flat = whole.as_strided((whole.numel(),), (1,))  # a single value may have any stride
        left = flat.view(torch.uint8).numpy().data
        while left:
            # One call may write only a part.
            count = os.pwrite(self._opened(), left, offset)
            left, offset = left[count:], offset + count
        return offset

    def _opened(self) -> int:
        """Return the file's descriptor; the file is made for the first update."""
        if self._file is None:
            file = tempfile.TemporaryFile(prefix="nestfl-", buffering=0)  # noqa: SIM115
            weakref.finalize(self, file.close)
            self._file = file.fileno()
        return self._file

    def _light(self, given: SliceMap) -> SliceMap:
        """Return a map without its regions' cached runs, which may be large.

        Updates that share a map still share the copy.
        """
        if given not in self._maps:
            regions = {name: replace(region) for name, region in given.regions.items()}
            self._maps[given] = SliceMap(regions)
        return self._maps[given]


def _client_and_level(spooled: Spooled) -> tuple[int, int]:
    update = spooled.update
    return (-1 if update.client is None else update.client), update.level
