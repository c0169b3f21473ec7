"""Starts simulated runs, and compares their records."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from server_app.record import checkpoint
from trials.faults.case import Case
from trials.faults.processes import AS_NOBODY, BIN, NOBODY, Process, of_this_fault, wait_until

ROUNDS = 6
SMALL = (
    f"experiment=smoke rounds={ROUNDS} checkpoint.keep={ROUNDS} evaluate.every=0 "
    "evaluate.clients_every=0 train.device=cpu"
).split()


def nestfl(case: Case, log: str, *arguments: str, home: Path | None = None) -> Process:
    """Start `nestfl` in the fault's directory; with `home`, as nobody in that home."""
    user, home = (AS_NOBODY, home) if home else ((), case.shared)
    env = {"NESTFL_CACHE": str(home / "cache"), "HOME": str(home), "COLUMNS": "160"}
    command = [*user, str(BIN / "nestfl"), *arguments]
    return Process(command, case.log(log), case.folder, env)


def home_of_nobody(case: Case) -> Path:
    home = case.folder / "home"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    return home


def start_run(case: Case, name: str = "run", *overrides: str) -> Process:
    return nestfl(case, name, "run", *SMALL, f"name={name}", f"output={case.folder}", *overrides)


def resume(case: Case, run_dir: Path, log: str = "resumed") -> Process:
    return nestfl(case, log, "run", "--resume", str(run_dir))


def undisturbed(case: Case) -> Path:
    """Return the record of an undisturbed run; it is made once for all faults."""
    record = case.shared / "undisturbed"
    if not record.exists():
        run = start_run(case, "undisturbed")
        assert run.end() == 0, f"the undisturbed run failed: {run.output()[-300:]}"
        (case.folder / "undisturbed").rename(record)
    return record


def unfinished_copy(case: Case, after: int) -> Path:
    """Return a copy of the undisturbed record, as if the run had been killed after a round."""
    copied = case.folder / "copied"
    shutil.copytree(undisturbed(case), copied)
    (copied / "summary.json").unlink()
    for number in range(after + 1, ROUNDS + 1):
        (copied / "checkpoints" / f"round-{number:06d}.safetensors").unlink()
    lines = (copied / "metrics.jsonl").read_text().splitlines(keepends=True)
    (copied / "metrics.jsonl").write_text("".join(lines[:after]))
    return copied


def rounds_of(record: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (record / "metrics.jsonl").read_text().splitlines()]


def assert_same_end(record: Path, whole: Path) -> None:
    """Assert that a run came to its end with the weights of another, bit for bit."""
    assert (record / "summary.json").exists(), "no summary"
    numbers = [line["round"] for line in rounds_of(record)]
    assert numbers == [line["round"] for line in rounds_of(whole)], f"rounds {numbers}"
    one, other = checkpoint.load(record).tensors, checkpoint.load(whole).tensors
    assert one.keys() == other.keys(), "other tensors than the undisturbed run"
    different = [name for name in one if not torch.equal(one[name], other[name])]
    assert not different, f"{len(different)} of {len(one)} tensors differ from the undisturbed run"


def assert_nothing_runs() -> None:
    wait_until(lambda: not of_this_fault(), "the end of all processes", 40)
