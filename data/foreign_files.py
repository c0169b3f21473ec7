"""Read files that others wrote: what is wrong with them is told with file and row, all at once."""

from __future__ import annotations

import gzip
import lzma
import math
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.lib import format as npy_format
from numpy.lib.npyio import NpzFile

from data.catalog import DataError
from plugins.regular_files import IrregularFileError, open_regular


class Broken(NamedTuple):
    """A file, or a row of one, that cannot be used."""

    place: str
    why: str

    def __str__(self) -> str:
        return f"{self.place}{self.why}"


class BrokenFilesError(DataError):
    """Some of the files or rows cannot be used; the first is told, and all are `broken`."""

    def __init__(self, broken: Sequence[Broken]) -> None:
        more = f"; and {len(broken) - 1} more, which `nestfl data` lists" if broken[1:] else ""
        super().__init__(f"{broken[0]}{more}")
        self.broken = tuple(broken)


def raise_if(broken: Sequence[Broken]) -> None:
    """Raise a `BrokenFilesError` if there is anything to tell."""
    if broken:
        raise BrokenFilesError(broken)


# --- reading


UNREADABLE = (
    *(OSError, EOFError, ValueError, TypeError, OverflowError, RuntimeError, MemoryError),
    *(BadZipFile, zlib.error, lzma.LZMAError),
)
"""Errors of reading a broken file; those of Arrow are subclasses of these."""
SMALL, GROWTH = 2**28, 100
"""Bytes that any file may take in memory, and how many times its own size a larger one may."""


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Turn what goes wrong in the block, while a file is read, into a `DataError` that names it."""
    try:
        yield
    except DataError as error:
        if str(file) in str(error):
            raise
        raise DataError(f"{file}: {error}") from error
    except IrregularFileError as error:
        raise DataError(str(error)) from error
    except UNREADABLE as error:
        raise DataError(f"{file} cannot be read: {str(error) or type(error).__name__}") from error


def most_memory(file: Path) -> int:
    """Return the bytes that a file's content may take in memory.

    A few bytes of a compressed file can stand for any number of equal values.
    """
    return max(SMALL, GROWTH * file.stat().st_size)


def require_memory(file: Path, needed: int) -> None:
    """Raise where a file's content, or a part of it, would take too much memory."""
    if needed > most_memory(file):
        raise DataError(
            f"{file} would take more than {most_memory(file) / 2**20:,.0f} MiB of memory, for "
            f"{file.stat().st_size:,} bytes on disk: expected at most {SMALL >> 20} MiB or "
            f"{GROWTH} times its size; write it with less compression"
        )


def unpacked(opened: IO[bytes], file: Path) -> bytes:
    """Return the content of a gzipped file that is open."""
    with gzip.open(opened) as packed:
        content = packed.read(most_memory(file) + 1)
    require_memory(file, len(content))
    return content


@contextmanager
def opened_npz(file: Path) -> Iterator[NpzFile]:
    """Open a NumPy archive; what goes wrong while it is open is a `DataError` that names it."""
    with reading(file), open_regular(file) as opened:
        if opened.peek(len(npy_format.MAGIC_PREFIX)).startswith(npy_format.MAGIC_PREFIX):
            raise DataError(f"{file} is no archive: expected one of np.savez")
        with np.load(opened, allow_pickle=False) as archive:
            _check_arrays(file, archive.zip)
            yield archive


def _check_arrays(file: Path, archive: ZipFile) -> None:
    """Raise unless each array has the size that its header claims, and all fit into memory."""
    total = 0
    for member in archive.infolist():
        with archive.open(member) as array:
            shape, kind = _header_of(array, member.filename)
            claimed = math.prod(shape) * kind.itemsize
            if not kind.hasobject and claimed != member.file_size - array.tell():
                raise DataError(
                    f"{member.filename} claims the shape {shape} of {kind}, {claimed:,} bytes, but "
                    f"has {member.file_size - array.tell():,}"
                )
        total += member.file_size
        require_memory(file, total)


def _header_of(array: IO[bytes], name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Read the shape and the type at the beginning of an array's file."""
    try:
        version = npy_format.read_magic(array)
        read = {
            (1, 0): npy_format.read_array_header_1_0,
            (2, 0): npy_format.read_array_header_2_0,
        }[version]
        shape, _, kind = read(array)
    except (ValueError, KeyError):
        raise DataError(f"{name} is no array of numbers or texts") from None
    return shape, kind
