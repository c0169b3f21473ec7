"""Opens files that others wrote, and refuses all but regular ones.

Opening a named pipe waits for a writer, and reading a device may never end. So each reader of a
user's or another machine's file opens it here, or calls `require_regular` before it hands the path
to a library. This is the lowest layer, so every package may import it.
"""

from __future__ import annotations

import os
import stat
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import IO, Any, Literal, overload

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class IrregularFileError(OSError):
    """A path that is no regular file; its text is one line that begins with the path."""

    def __init__(self, path: str | os.PathLike[str], mode: int) -> None:
        self.kind = KINDS.get(stat.S_IFMT(mode), "no regular file")
        super().__init__(f"{os.fspath(path)} is {self.kind}: expected a regular file")


def require_regular(path: str | os.PathLike[str]) -> None:
    """Raise `IrregularFileError` unless this is a regular file, or a link to one."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        raise IrregularFileError(path, mode)


@overload
def open_regular(path: str | Path, mode: Literal["rb"] = "rb") -> BufferedReader: ...


@overload
def open_regular(path: str | Path, mode: Literal["r"]) -> TextIOWrapper: ...


def open_regular(path: str | Path, mode: Literal["rb", "r"] = "rb") -> IO[Any]:
    """Open a regular file for reading, as bytes or as UTF-8; else raise `IrregularFileError`."""
    require_regular(path)
    return open(path, mode, encoding=None if mode == "rb" else "utf-8", opener=_opened)


def _opened(path: str, flags: int) -> int:
    """Open a path without waiting, and check again: it may have become a pipe since the check."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    raise IrregularFileError(path, mode)
