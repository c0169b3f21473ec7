"""Locks on a run's directory, so that only one process writes it.

They are the operating system's: they go with the process that holds them, however it ends, and a
shared file system keeps them for all its machines. The lock's file only says who that is.

A ServerApp ends with its SuperLink, but one that hangs may outlive it, and keep its lock. It is
ended where it is certainly such an orphan.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import signal
import socket
import time
from pathlib import Path

from plugins.regular_files import open_regular
from server_app.config.typed import ConfigError

PATIENCE = 10.0
"""Seconds that a killed run's processes may take to end."""

GLANCE = 0.1
"""Seconds that a look at a lock (`in_use`) may keep others from taking it."""

SERVER_APP, PARENT = "flwr-serverapp", "--parent-pid"
"""The program that Flower starts for a ServerApp, and how it is told whom it must not outlive."""

log = logging.getLogger("flwr")  # whose lines `flwr log` shows


class Lock:
    """Holds a lock file from its making until it is closed, or its process ends."""

    def __init__(self, file: Path, patience: float = 0.0) -> None:
        """Take the lock, or raise a `ConfigError` that says who has it, or why it cannot be.

        A process that still has it after `patience` seconds is ended if it is an orphan.
        """
        try:
            self._file = file.open("a+")
        except OSError as error:
            raise ConfigError(
                f"cannot write to the run directory {file.parent} ({error.strerror}): "
                "expected one that this user may write; change its owner, or copy it"
            ) from error
        try:
            self._take(time.monotonic() + max(patience, GLANCE), ends_orphans=patience > 0)
        except BaseException:
            self._file.close()
            raise
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} on {socket.gethostname()}")
        self._file.flush()

    def _take(self, end: float, ends_orphans: bool) -> None:
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= end:
                    if not (ends_orphans and self._end_orphan()):
                        raise ConfigError(self._refusal()) from None
                    end, ends_orphans = time.monotonic() + PATIENCE, False
                time.sleep(0.1)
            except OSError as error:
                log.warning(
                    "%s cannot be locked (%s): see to it that no other process writes there",
                    Path(self._file.name).parent,
                    error.strerror,
                )
                return

    def _refusal(self) -> str:
        holder, number = self._holder()
        command = f" (kill {number})" if number else ""
        return (
            f"{Path(self._file.name).parent} is in use by {holder}: "
            f"wait until that has ended, or stop it{command}"
        )

    @property
    def is_there(self) -> bool:
        """Whether the lock's file is still in its place: not deleted, moved or replaced."""
        try:
            there = os.stat(self._file.name)
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(self._file.fileno()))

    def _holder(self) -> tuple[str, int | None]:
        """Return who has the lock; and its number, if it is a process of this machine."""
        self._file.seek(0)
        holder = self._file.read() or "another process"
        found = re.fullmatch(r"process (\d+) on (.+)", holder)
        here = found is not None and found[2] == socket.gethostname()
        return holder, int(found[1]) if found and here else None

    def _end_orphan(self) -> bool:
        """End the process that has the lock if it is a ServerApp whose SuperLink is gone."""
        _, number = self._holder()
        if number is None or not _is_orphan(number, os.fstat(self._file.fileno())):
            return False
        try:
            os.kill(number, signal.SIGKILL)
        except OSError:  # it has just ended
            return True
        log.warning(
            "process %d was ended: it is a ServerApp whose SuperLink is gone, and it hung in %s",
            number,
            Path(self._file.name).parent,
        )
        return True

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


def _is_orphan(number: int, file: os.stat_result) -> bool:
    """Return whether a process is a ServerApp of this user's without its parent, and has a file.

    Where that cannot be told (there is no /proc, or another user's process) it is none.
    """
    process = Path(f"/proc/{number}")
    try:
        if process.stat().st_uid != os.getuid():
            return False
        command = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        opened = [entry.stat() for entry in (process / "fd").iterdir() if entry.exists()]
    except OSError:
        return False
    if SERVER_APP not in (Path(part).name for part in command[:2]) or PARENT not in command:
        return False
    parent = command[command.index(PARENT) + 1]
    has_file = any(os.path.samestat(each, file) for each in opened)
    return has_file and parent.isdigit() and not Path(f"/proc/{parent}").exists()
