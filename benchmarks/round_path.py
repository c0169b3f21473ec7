"""Counts the files and functions that one steady round crosses, and lists them in its order.

A federation of the smallest scale runs on the local engine, in this process. Counting begins when
the line of round 2 is written to metrics.jsonl, and ends with the line of round 3.

    python -m benchmarks.round_path
    python -m benchmarks.round_path --list     # each file, with the functions called in it
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = ("tests", "benchmarks", "trials", "examples", "reference", "docs", ".venv")
"""Folders whose code is not shipped."""


@dataclass
class RoundPath:
    """The calls of one round, as the interpreter's profiler reports them."""

    lines: int = 0
    """Lines of metrics.jsonl that were written."""
    functions: dict[str, Counter[str]] = field(default_factory=dict)
    """Calls by function, by file, in the order of the first call."""
    hops: int = 0
    """Calls from one file into another."""

    def called(self, frame: FrameType, event: str, argument: Any) -> None:
        """Count a call; see `sys.setprofile`."""
        if event != "call" or not (file := shipped(frame.f_code.co_filename)):
            return
        if file == "server_app/record/run_record.py" and frame.f_code.co_name == "append":
            self.lines += 1
        if self.lines != 2:
            return
        name = frame.f_code.co_qualname
        if not name.rpartition(".")[2].startswith("<"):
            self.functions.setdefault(file, Counter())[name] += 1
        caller = frame.f_back
        if caller is not None and (before := shipped(caller.f_code.co_filename)):
            self.hops += before != file


def shipped(file: str) -> str | None:
    """Return the path of a shipped file in the checkout; None for any other file."""
    if not file.startswith(str(ROOT)):
        return None
    path = file[len(str(ROOT)) + 1 :]
    return None if path.startswith(OUTSIDE) else path


def main() -> None:
    """Run three rounds and print what the third one crosses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="list files and functions")
    parser.add_argument("overrides", nargs="*", help="such as strategy=heterofl")
    given = parser.parse_args()
    from nestfl.local_engine import LocalGrid
    from server_app.app import run
    from server_app.config.composing import compose

    asked = ["scale=small", "rounds=4", "evaluate.every=1", "report=false", *given.overrides]
    path = RoundPath()
    with tempfile.TemporaryDirectory() as folder:
        config = compose(" ".join(asked))
        sys.setprofile(path.called)
        try:
            run(LocalGrid(config.fleet.clients), config, Path(folder) / "run")
        finally:
            sys.setprofile(None)
    functions = sum(map(len, path.functions.values()))
    if given.list:
        for number, (file, calls) in enumerate(path.functions.items(), 1):
            print(f"{number:3} {file}: " + ", ".join(f"{n} {c}x" for n, c in calls.items()))
    print(f"{len(path.functions)} files, {functions} functions, {path.hops:,} hops between files")


if __name__ == "__main__":
    main()
