"""Faults of a run's directory: damaged checkpoints, two runs in one, a name that was taken."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

from trials.faults.case import Case, Outcome, fault, stopped, survived
from trials.faults.processes import Process, running
from trials.faults.runs import (
    ROUNDS,
    assert_same_end,
    resume,
    start_run,
    undisturbed,
    unfinished_copy,
)

NEWEST = f"round-{ROUNDS - 1:06d}.safetensors"


def resume_from_damage(case: Case, record: Path) -> Outcome:
    """Resume; the run must name the checkpoint that it skips, and end as the undisturbed one."""
    again = resume(case, record)
    assert again.end() == 0, f"--resume failed: {again.output()[-200:]}"
    log = (record / "flower.log").read_text()
    case.see(f"{again.output()}\n{log}", rf"{NEWEST}.*")
    assert_same_end(record, undisturbed(case))
    return survived("a round, which was run again from the checkpoint before")


@fault()
def truncated_checkpoint(case: Case) -> Outcome:
    """The newest checkpoint is cut in half."""
    record = unfinished_copy(case, ROUNDS - 1)
    file = record / "checkpoints" / NEWEST
    os.truncate(file, file.stat().st_size // 2)
    return resume_from_damage(case, record)


@fault()
def flipped_bytes(case: Case) -> Outcome:
    """64 bytes in the middle of the newest checkpoint are flipped."""
    record = unfinished_copy(case, ROUNDS - 1)
    file = record / "checkpoints" / NEWEST
    data = bytearray(file.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 64] = bytes(byte ^ 0xFF for byte in data[middle : middle + 64])
    file.write_bytes(data)
    return resume_from_damage(case, record)


@fault()
def two_resumes(case: Case) -> Outcome:
    """`--resume` of a run that another `--resume` has just taken up."""
    record = unfinished_copy(case, 1)
    first = resume(case, record, "first")
    first.until(r"\S")
    second = resume(case, record, "second")
    trees: dict[Process, set[int]] = {first: {first.pid}, second: {second.pid}}
    while not second.ended and not first.ended:
        for process, pids in trees.items():
            pids.update(running(process.pid))
        time.sleep(0.1)
    second.end()
    first.end()
    refused, other = (second, first) if second.code else (first, second)
    holder = re.search(r"in use by process (\d+)", case.see(refused, "in use by process"))
    assert refused.code != 0, "both went on"
    assert other.code == 0, f"exits {first.code} and {second.code}"
    assert holder, "no pid is named"
    assert int(holder[1]) in trees[other], "the pid that is named is not the other's"
    assert_same_end(record, undisturbed(case))
    return stopped("nothing: the other went on and ended as it would have alone")


@fault()
def failed_start(case: Case) -> Outcome:
    """A start that is stopped, one that fails, then a good one, all under one name."""
    early = start_run(case, "run")
    early.until(r"\S")
    early.send(signal.SIGINT)
    early.end(60)
    wrong = start_run(case, "run", "dataset.path=/nowhere")
    assert wrong.end() != 0
    case.see(wrong, "/nowhere|exists")
    assert "/nowhere" in wrong.output(), "the stopped start blocks its name"
    good = start_run(case, "run", "rounds=1")
    if good.end():
        case.see(good, "exists|failed")
    assert good.code == 0, "the failed start blocks its name"
    assert (case.folder / "run" / "summary.json").exists()
    return stopped()
