"""A run's files: what they are called, and how they are whole or absent, whenever it is killed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

CONFIG_FILE = "config.yaml"
METRICS_FILE = "metrics.jsonl"
PROGRESS_FILE = "progress.jsonl"
SUMMARY_FILE = "summary.json"
UNFINISHED = ".unfinished"


def new_names(label: str) -> Iterator[str]:
    """Names for a new run's directory, of the time and a label: for the first that is not taken."""
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{label}"
    yield stem
    yield from (f"{stem}-{number}" for number in count(2))


@contextmanager
def written_atomically(file: Path) -> Iterator[Path]:
    """A path beside `file` to write to; what is there at the end takes the place of `file`."""
    unfinished = file.with_name(f".{file.name}{UNFINISHED}")
    try:
        yield unfinished
        _sync(unfinished)  # before the name: a name without its bytes would outlive a power cut
        os.replace(unfinished, file)
        _sync(file.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def write_text(file: Path, text: str) -> None:
    with written_atomically(file) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


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
