"""Acts as another user of the machine: uses loopback ports, lists processes, opens files."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import httpx
from google.protobuf.message import Message  # type: ignore[import-untyped]

from trials.faults.processes import NOBODY
from trials.security.door import Answer, Door

Result = TypeVar("Result")


def as_other_user(do: Callable[[], Result]) -> Result:
    """Call a function in a process that belongs to `nobody`; needs root."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writing, pickle.dumps(do()))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    result: Result = pickle.loads(told)
    return result


class OtherUsersDoor(Door):
    """A port on loopback, used by another user than the one who listens there."""

    def post(
        self,
        path: str,
        message: Message | bytes | Iterator[bytes] = b"",
        token: str = "",
        client: httpx.Client | None = None,
    ) -> Answer:
        return as_other_user(lambda: Door.post(self, path, message, token))


def tokens(words: str) -> list[str]:
    """Return the command lines with a task's token and some words that another user sees."""

    def look() -> list[str]:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if "--token " in command and words in command:
                found.append(command)
        return found

    return as_other_user(look)


def readable(*files: Path) -> list[str]:
    """Return the names of the files that another user can read."""
    return as_other_user(lambda: [file.name for file in files if _opens(file, os.O_RDONLY)])


def writable(*files: Path) -> list[str]:
    """Return the names of the files that another user can change."""
    return as_other_user(lambda: [file.name for file in files if _opens(file, os.O_WRONLY)])


def _opens(file: Path, how: int) -> bool:
    try:
        os.close(os.open(file, how))
    except OSError:
        return False
    return True
