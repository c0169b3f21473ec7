"""A run's directory: its files' names, writing them whole or not at all, and the lock on it.

Only one process writes a run's directory. The locks are the operating system's: they end with the
process that holds them, and a shared file system keeps them for all its machines. The lock's file
only names the process.

A ServerApp ends with its SuperLink, but one that hangs may outlive it and keep its lock. It is
ended where it is certainly such an orphan.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shlex
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from itertools import count
from mmap import ACCESS_READ, mmap
from pathlib import Path

from plugins import FOLDER as PLUGINS_FOLDER
from plugins.regular_files import open_regular
from server_app.config.saved import CONFIG_FILE
from server_app.config.typed import ConfigError

COMPARISON_FILE = "comparison.json"
"""Marks a folder as a comparison, which holds runs, and not as a run."""
CONFUSION_FILE = "confusion.json"
FLEET_FILE = "fleet.json"
LOG_FILE = "flower.log"
METRICS_FILE = "metrics.jsonl"
PROGRESS_FILE = "progress.jsonl"
REPORT_FILE = "report.html"
SUMMARY_FILE = "summary.json"
MEMORY_FOLDER = "memory"
"""Folder for the memory of the clients of a run that `nestfl run` started."""
UNFINISHED = ".unfinished"
RECORD_LOCK, LAUNCHER_LOCK = ".record.lock", ".launcher.lock"
"""Locks of the process that writes the record (the server), and of a `nestfl run` around it."""
BEFORE_THE_FIRST_ROUND = {
    *(CONFIG_FILE, FLEET_FILE, LOG_FILE, PROGRESS_FILE, MEMORY_FOLDER, PLUGINS_FOLDER),
    *(RECORD_LOCK, LAUNCHER_LOCK, "wandb"),
}
"""Files of a run that ended before its first round."""
PATIENCE = 10.0
"""Seconds that a killed run's processes may take to end."""
GLANCE = 0.1
"""Seconds that a look at a lock (`in_use`) may keep others from taking it."""
SERVER_APP, PARENT = "flwr-serverapp", "--parent-pid"
"""The program that Flower starts for a ServerApp, and its option for the parent's process id."""
log = logging.getLogger("flwr")  # the logger that `flwr log` shows


def new_names(label: str) -> Iterator[str]:
    """Yield names for a new run's directory: time and label, then with a number."""
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{label}"
    yield stem
    yield from (f"{stem}-{number}" for number in count(2))


def new_directory(output: Path, name: str | None, label: str) -> Path:
    """Make a new run's directory below `output`, called `name`, or after the time and the label."""
    if name is not None:
        return claim(output / name)
    for free in new_names(label):
        with suppress(FileExistsError):
            make_directory(output / free)
            return output / free
    raise AssertionError("unreachable")


def claim(directory: Path) -> Path:
    """Make a new run's directory, or take one whose run ended before its first round."""
    require_free(directory)
    make_directory(directory, exist_ok=True)
    return directory


def require_free(directory: Path) -> None:
    """Raise if a directory holds files that a new run would be mixed with."""
    there = [file.name for file in directory.iterdir()] if directory.is_dir() else []
    if directory.is_file() or not BEFORE_THE_FIRST_ROUND.issuperset(there):
        resumable = any(directory.glob("checkpoints/round-*.safetensors"))
        again = f"resume={shlex.quote(str(directory))}"
        instead = f", or go on with {again}" if resumable else ""
        raise ConfigError(f"{directory} exists; give another name{instead}")


def make_directory(directory: Path, exist_ok: bool = False) -> None:
    """Make a directory and its parents; raise `ConfigError` if this user has no permission."""
    try:
        directory.mkdir(parents=True, exist_ok=exist_ok)
    except FileExistsError:
        raise
    except OSError as error:
        raise ConfigError(
            f"cannot make the directory {directory} ({error.strerror}): "
            "expected a place that this user may write; output= names another folder"
        ) from error


@contextmanager
def written_atomically(file: Path) -> Iterator[Path]:
    """Yield a path beside `file`; the file written there replaces `file` at the end."""
    unfinished = file.with_name(f".{file.name}{UNFINISHED}")
    try:
        yield unfinished
        _sync(unfinished)  # bytes before the name: else a power cut could leave an empty file
        os.replace(unfinished, file)
        _sync(file.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def write_text(file: Path, text: str) -> None:
    """Write a complete file; a kill leaves the old one."""
    with written_atomically(file) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def lines_backwards(file: Path) -> Iterator[bytes]:
    """Yield the complete lines of a file, last one first, without reading the whole file.

    A last line that a kill cut short is left out.
    """
    with open_regular(file) as opened:
        if not os.fstat(opened.fileno()).st_size:
            return
        yield from _backwards(opened)


def _backwards(opened: BufferedReader) -> Iterator[bytes]:
    with mmap(opened.fileno(), 0, access=ACCESS_READ) as text:
        end = text.rfind(b"\n")
        while end > 0:
            start = text.rfind(b"\n", 0, end) + 1
            yield text[start:end]
            end = start - 1


def remove_unfinished(directory: Path) -> None:
    """Remove the unfinished files of killed processes."""
    for file in directory.glob(f".*{UNFINISHED}"):
        file.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Lock:
    """Holds a lock file from its creation until it is closed or its process ends."""

    def __init__(self, file: Path, patience: float = 0.0) -> None:
        """Take the lock; raise `ConfigError` with its holder, or the reason why it cannot be taken.

        A holder that still has the lock after `patience` seconds is ended if it is an orphan.
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
        """True while the lock's file is in its place: not deleted, moved or replaced."""
        try:
            there = os.stat(self._file.name)
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(self._file.fileno()))

    def _holder(self) -> tuple[str, int | None]:
        """Return the lock's holder, and its process id if it runs on this machine."""
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
        except OSError:  # it has ended in the meantime
            return True
        log.warning(
            "process %d was ended: it is a ServerApp whose SuperLink is gone, and it hung in %s",
            number,
            Path(self._file.name).parent,
        )
        return True

    def close(self) -> None:
        """Release the lock, so that others may use the directory."""
        self._file.close()


def in_use(file: Path) -> bool:
    """Return whether a process holds a lock."""
    try:
        with open_regular(file) as opened:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no file, or not readable
        return False
    return False


def _is_orphan(number: int, file: os.stat_result) -> bool:
    """Return whether a process is this user's ServerApp without its parent, and has a file open.

    It is False if that cannot be known (no /proc, or another user's process).
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
