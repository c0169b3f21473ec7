"""Finds the runs below a folder, also those of comparisons, and folders that hold none."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from server_app.record.files import (
    COMPARISON_FILE,
    FLEET_FILE,
    LAUNCHER_LOCK,
    METRICS_FILE,
    RECORD_LOCK,
)
from server_app.record.run_entry import RunEntry, read_entry

MARKS = {FLEET_FILE, METRICS_FILE, LAUNCHER_LOCK, RECORD_LOCK}
"""Files that mark a run's directory."""
DEEPEST = 4
"""Depth of the search, in folders below the first."""


@dataclass
class RunList:
    """The runs below a folder, and the folders without runs."""

    folder: Path
    entries: Sequence[RunEntry] = ()
    """Sorted by their start, the newest last."""
    without: list[str] = field(default_factory=list)
    """Folders right below it that hold no run."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Reasons why this user cannot read a folder, by folder."""

    @classmethod
    def below(cls, folder: Path) -> RunList:
        """Return all runs below a folder; raise `ValueError` if it is no folder."""
        if not folder.is_dir():
            raise ValueError(f"{folder} is no folder: expected one with runs in it, such as runs")
        found = cls(folder)
        runs = found._search(folder, depth=0, seen=set())
        entries = [entry for run in runs if (entry := found._read(run))]
        found.entries = sorted(entries, key=lambda each: (each.started, str(each.directory)))
        return found

    def _read(self, run: Path) -> RunEntry | None:
        try:
            return read_entry(run)
        except OSError as error:
            self.unreadable[str(run)] = error.strerror or str(error)
            return None

    def name(self, entry: RunEntry) -> str:
        """Return a run's path relative to the folder."""
        place = entry.directory.relative_to(self.folder)
        return str(place) if place.parts else entry.directory.resolve().name

    def _search(self, folder: Path, depth: int, seen: set[tuple[int, int]]) -> list[Path]:
        """Return the run directories in a folder, including itself; each link is followed once."""
        try:
            there = sorted(os.scandir(folder), key=lambda each: each.name)
            known = folder.stat()
        except OSError as error:
            self.unreadable[str(folder)] = error.strerror or str(error)
            return []
        if (known.st_dev, known.st_ino) in seen:
            return []
        seen.add((known.st_dev, known.st_ino))
        names = {each.name for each in there}
        if names & MARKS and COMPARISON_FILE not in names:
            return [folder]
        runs = []
        for each in there if depth < DEEPEST else ():
            if each.name.startswith(".") or not each.is_dir():
                continue
            found = self._search(folder / each.name, depth + 1, seen)
            runs += found
            unread = str(folder / each.name) in self.unreadable
            if not (found or depth or unread or COMPARISON_FILE in names):
                self.without.append(each.name)
        return runs
