"""Measures the phases from `nestfl run` to its first round, and their processor time.

    python -m benchmarks.startup [COMMAND...]

Each COMMAND is a `nestfl`, such as .venv/bin/nestfl of another checkout to compare with; default:
this one. They run in turns. A first run of each is not counted, because it fills the cache.
"""

from __future__ import annotations

import json
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

TRIVIAL = ["run", "fleet=small", "rounds=1"]
THIS = shlex.join([sys.executable, "-m", "nestfl"])
TURNS = 3
PAUSE = 0.02
PHASES = (
    "the run is checked",
    "clients have come, and the levels are made",
    "the first reply",
    "round 1 is over",
    "all is over",
    "processor time of all",
)


def main() -> None:
    """Print a table of phases, a column for each command."""
    commands = sys.argv[1:] or [THIS]
    measured: dict[str, list[list[float]]] = {command: [] for command in commands}
    for turn in range(TURNS + 1):
        for command in commands:
            seconds = phases(shlex.split(command))
            if turn:
                measured[command].append(seconds)
    table = Table(title=f"nestfl {shlex.join(TRIVIAL)}: seconds after the command, the median")
    table.add_column("until")
    for command in commands:
        table.add_column(command, justify="right")
    for row, phase in enumerate(PHASES):
        cells = [[turn[row] for turn in turns] for turns in measured.values()]
        table.add_row(phase, *(f"{statistics.median(each):.1f}" for each in cells))
    Console().print(table)


def phases(command: Sequence[str]) -> list[float]:
    """Run a command once; return the end of each phase, and the processor time."""
    with tempfile.TemporaryDirectory() as folder, processor_time() as used:
        run = Path(folder, "run")
        began = time.monotonic()
        process = subprocess.Popen(
            [*command, *TRIVIAL, "--run-dir", str(run)],
            stdout=subprocess.DEVNULL,
        )
        ends = [
            _seconds_until(reached, process, began)
            for reached in (
                run.is_dir,
                lambda: _told(run, "start"),
                lambda: _told(run, "reply"),
                lambda: _told(run, "round"),
            )
        ]
        if process.wait() != 0:
            sys.exit(f"{shlex.join(command)} failed")
        ends.append(time.monotonic() - began)
    return [*ends, used()]


@contextmanager
def processor_time() -> Iterator[Callable[[], float]]:
    """Yield a function that returns the processor time of all processes that were waited for."""

    def now() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = now()
    yield lambda: now() - before


def _seconds_until(
    reached: Callable[[], bool], process: subprocess.Popen[bytes], began: float
) -> float:
    while not reached() and process.poll() is None:
        time.sleep(PAUSE)
    return time.monotonic() - began


def _told(run: Path, event: str) -> bool:
    """Return whether a run's server has recorded an event."""
    try:
        lines = (run / "progress.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return False
    return any(json.loads(line)["event"] == event for line in lines if line.endswith("}"))


if __name__ == "__main__":
    main()
