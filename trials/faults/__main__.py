"""Runs faults one after the other, each in a process of its own, and prints the table."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from trials.faults.case import FAILED, FAULTS, Case, Fault, Outcome
from trials.faults.processes import PATIENCE, adopt_orphans, kill_all, reap_until
from trials.faults.table import as_table, update_markdown

GROUPS = (
    "simulation", "checkpoints", "owners", "deployment", "uploads", "server", "hostile", "start",
)  # fmt: skip
for group in GROUPS:
    import_module(f"trials.faults.{group}")  # fills FAULTS, in this order

OUTCOME_FILE = "outcome.json"


def run_apart(fault: Fault, root: Path) -> Outcome:
    """Run a fault in a process of its own; afterwards all its processes have ended."""
    folder = root / fault.name
    folder.mkdir()
    command = [sys.executable, "-m", "trials.faults", fault.name, "--in", str(root)]
    with (folder / "fault.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    limit = fault.seconds * PATIENCE
    try:
        in_time = reap_until(process.pid, limit)
    finally:
        kill_all(os.getpid())
    why = "ended without an outcome" if in_time else f"took more than {limit:.0f} s"
    file = folder / OUTCOME_FILE
    if not file.exists():
        return Outcome(f"{FAILED}: {why}", "")
    return Outcome(**json.loads(file.read_text()))


def run_here(fault: Fault, root: Path) -> None:
    folder, shared = root / fault.name, root / "shared"
    outcome = fault.outcome(Case(folder, shared))
    (folder / OUTCOME_FILE).write_text(json.dumps(asdict(outcome)))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m trials.faults")
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults to run; all by default")
    parser.add_argument("--list", action="store_true", help="say which faults there are")
    parser.add_argument("--markdown", type=Path, help="a page whose table gets the new rows")
    parser.add_argument("--in", type=Path, dest="root", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - FAULTS.keys():
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(FAULTS)}")
    chosen = [FAULTS[name] for name in arguments.names] or list(FAULTS.values())
    if arguments.list:
        print("\n".join(f"{fault.name:28} {fault.says}" for fault in chosen))
        return 0
    if arguments.root:
        run_here(chosen[0], arguments.root)
        return 0
    return run_all(chosen, arguments.markdown)


def run_all(faults: list[Fault], markdown: Path | None) -> int:
    """Print the table; return 1 if a fault FAILED, whose directory is then kept."""
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that running processes end, too
    root = Path(tempfile.mkdtemp(prefix="faults-"))
    root.chmod(0o755)  # some faults run as another user
    (root / "shared").mkdir()
    outcomes: dict[str, Outcome] = {}
    for fault in faults:
        began = time.monotonic()
        outcome = outcomes[fault.name] = run_apart(fault, root)
        print(f"{fault.name}: {outcome.verdict} ({time.monotonic() - began:.0f} s)", flush=True)
        if markdown:  # at once: a matrix that is stopped keeps its results
            update_markdown(markdown, {fault.name: outcome})
        if not outcome.verdict.startswith(FAILED):
            shutil.rmtree(root / fault.name)
    print(as_table(outcomes))
    failed = any(outcome.verdict.startswith(FAILED) for outcome in outcomes.values())
    if failed:
        print(f"what the failed ones left is in {root}")
    else:
        shutil.rmtree(root)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
