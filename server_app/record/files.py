"""A run's files: what they are called, and how they are whole or absent, whenever it is killed."""

from __future__ import annotations

import os
import shlex
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
"""What tells the folder of a comparison, which holds runs, from a run's own."""
CONFUSION_FILE = "confusion.json"
FLEET_FILE = "fleet.json"
LOG_FILE = "flower.log"
METRICS_FILE = "metrics.jsonl"
PROGRESS_FILE = "progress.jsonl"
REPORT_FILE = "report.html"
SUMMARY_FILE = "summary.json"
MEMORY_FOLDER = "memory"
"""Where the clients of a run that `nestfl run` started keep what they remember."""
UNFINISHED = ".unfinished"
RECORD_LOCK, LAUNCHER_LOCK = ".record.lock", ".launcher.lock"
"""Locks of the process that writes the record (the server), and of a `nestfl run` around it."""
BEFORE_THE_FIRST_ROUND = {
    *(CONFIG_FILE, FLEET_FILE, LOG_FILE, PROGRESS_FILE, MEMORY_FOLDER, PLUGINS_FOLDER),
    *(RECORD_LOCK, LAUNCHER_LOCK, "wandb"),
}
"""All that there is of a run that came to nothing."""


def new_names(label: str) -> Iterator[str]:
    """Yield names for a new run's directory, of the time and a label; the first free one serves."""
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{label}"
    yield stem
    yield from (f"{stem}-{number}" for number in count(2))


def new_directory(output: Path, name: str | None, label: str) -> Path:
    """Make a new run's directory below `output`, of its name, or else of the time and the label."""
    if name is not None:
        return claim(output / name)
    for free in new_names(label):
        with suppress(FileExistsError):
            make_directory(output / free)
            return output / free
    raise AssertionError("unreachable")


def claim(directory: Path) -> Path:
    """Make a new run's directory, or take one whose run has not come to its first round."""
    require_free(directory)
    make_directory(directory, exist_ok=True)
    return directory


def require_free(directory: Path) -> None:
    """Raise where something is that a new run would be mixed with."""
    there = [file.name for file in directory.iterdir()] if directory.is_dir() else []
    if directory.is_file() or not BEFORE_THE_FIRST_ROUND.issuperset(there):
        resumable = any(directory.glob("checkpoints/round-*.safetensors"))
        again = f"resume={shlex.quote(str(directory))}"
        instead = f", or go on with {again}" if resumable else ""
        raise ConfigError(f"{directory} exists; give another name{instead}")


def make_directory(directory: Path, exist_ok: bool = False) -> None:
    """Make a directory and those above it; where this user may not, say so."""
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
    """Yield a path beside `file`; what is written there takes the place of `file` at the end."""
    unfinished = file.with_name(f".{file.name}{UNFINISHED}")
    try:
        yield unfinished
        _sync(unfinished)  # before the name: a name without its bytes would outlive a power cut
        os.replace(unfinished, file)
        _sync(file.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def write_text(file: Path, text: str) -> None:
    """Write a file whole, or not at all: a kill leaves the one that was there."""
    with written_atomically(file) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def lines_backwards(file: Path) -> Iterator[bytes]:
    """Yield the whole lines of a file, the last one first, without reading all of it.

    One that a kill cut short is left out.
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
    """Clear away what killed processes left."""
    for file in directory.glob(f".*{UNFINISHED}"):
        file.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
