"""Locks on a run's directory, so that only one process writes it.

They are the operating system's: they go with the process that holds them, however it ends, and a
shared file system keeps them for all its machines. The lock's file only says who that is.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import time
from pathlib import Path

from plugins.regular_files import open_regular
from server_app.config.typed import ConfigError

PATIENCE = 10.0
"""Seconds that a killed run's processes may take to end."""

GLANCE = 0.1
"""Seconds that a look at a lock (`in_use`) may keep others from taking it."""

log = logging.getLogger("flwr")  # whose lines `flwr log` shows


class Lock:
    """Holds a lock file from its making until it is closed, or its process ends."""

    def __init__(self, file: Path, patience: float = 0.0) -> None:
        """Take the lock, or raise a `ConfigError` that says who has it, or why it cannot be."""
        try:
            self._file = file.open("a+")
        except OSError as error:
            raise ConfigError(
                f"cannot write to the run directory {file.parent} ({error.strerror}): "
                "expected one that this user may write; change its owner, or copy it"
            ) from error
        try:
            self._take(time.monotonic() + max(patience, GLANCE))
        except BaseException:
            self._file.close()
            raise
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} on {socket.gethostname()}")
        self._file.flush()

    def _take(self, end: float) -> None:
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise ConfigError(self._refusal()) from None
                time.sleep(0.1)
            except OSError as error:
                log.warning(
                    "%s cannot be locked (%s): see to it that no other process writes there",
                    Path(self._file.name).parent,
                    error.strerror,
                )
                return

    def _refusal(self) -> str:
        self._file.seek(0)
        holder = self._file.read() or "another process"
        return (
            f"{Path(self._file.name).parent} is in use by {holder}: "
            "wait until that has ended, or stop it"
        )

    @property
    def is_there(self) -> bool:
        """Whether the lock's file is still in its place: not deleted, moved or replaced."""
        try:
            there = os.stat(self._file.name)
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(self._file.fileno()))

    def close(self) -> None:
        """Let others have the directory."""
        self._file.close()


def in_use(file: Path) -> bool:
    """Return whether a process holds a lock."""
    try:
        with open_regular(file) as opened:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is none, or it cannot be told
        return False
    return False
