"""Faults of a simulation: killed and stopped processes, and a full disk."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

from trials.faults.case import Case, Outcome, fault, not_run, stopped, survived
from trials.faults.processes import Process, find, of_this_fault
from trials.faults.runs import (
    ROUNDS,
    SMALL,
    assert_nothing_runs,
    assert_same_end,
    nestfl,
    resume,
    rounds_of,
    start_run,
    undisturbed,
)

HOW_TO_RESUME = r"go on with: nestfl run --resume"
GOES_ON_BY_ITSELF = "Going on from the last checkpoint"


def in_round_3(run: Process) -> None:
    run.until(r"round 2/")


def resumes_to_the_same_end(case: Case, record: Path, whole: Path) -> None:
    again = resume(case, record)
    assert again.end() == 0, f"--resume failed: {again.output()[-200:]}"
    assert_same_end(record, whole)


@fault()
def killed_run(case: Case) -> Outcome:
    """kill -9 of `nestfl run`, then `--resume`."""
    whole = undisturbed(case)
    run = start_run(case)
    in_round_3(run)
    run.send(signal.SIGKILL)
    run.end()
    assert_nothing_runs()
    case.see(run, r"^round 2/")
    resumes_to_the_same_end(case, case.folder / "run", whole)
    return survived("the round that ran; all processes ended by themselves")


@fault()
def killed_with_all_its_processes(case: Case) -> Outcome:
    """kill -9 of all processes of a run at once, which leaves its lock behind, then `--resume`."""
    whole = undisturbed(case)
    run = start_run(case)
    in_round_3(run)
    for pid in of_this_fault():
        os.kill(pid, signal.SIGKILL)
    run.end()
    assert_nothing_runs()
    resumes_to_the_same_end(case, case.folder / "run", whole)
    case.see(case.log("resumed").read_text(), r"lock|^round 3/")
    return survived("the round that ran")


@fault(360)
def killed_simulation(case: Case) -> Outcome:
    """kill -9 of Flower's simulation (the server) in a round."""
    whole = undisturbed(case)
    run = start_run(case)
    in_round_3(run)
    os.kill(find("nestfl.launching.driver"), signal.SIGKILL)
    code = run.end(240)
    assert_nothing_runs()
    if code == 0:
        case.see(run, GOES_ON_BY_ITSELF)
        assert_same_end(case.folder / "run", whole)
        return survived("the round that ran, which was run again")
    case.see(run, "the run failed after round")
    assert re.search(HOW_TO_RESUME, run.output()), "it does not say how to go on"
    resumes_to_the_same_end(case, case.folder / "run", whole)
    return stopped("the round that ran")


@fault(300)
def killed_actor(case: Case) -> Outcome:
    """kill -9 of a Ray actor that simulates clients."""
    whole = undisturbed(case)
    run = start_run(case)
    in_round_3(run)
    os.kill(find("ray::ClientAppActor"), signal.SIGKILL)
    code = run.end(240)
    case.see(run, "processes of clients died")
    assert GOES_ON_BY_ITSELF in run.output(), "it does not say that it goes on"
    assert code == 0, "the run did not go on by itself"
    lines = rounds_of(case.folder / "run")
    assert len(lines) == ROUNDS, f"{len(lines)} rounds"
    lost = sum(line["clients"]["sampled"] - line["clients"]["replied"] for line in lines)
    if lost == 0:
        assert_same_end(case.folder / "run", whole)
    return survived(f"{lost} replies; it went on from its last checkpoint by itself")


@fault()
def interrupted_run(case: Case) -> Outcome:
    """Ctrl-C in a round, then `--resume`."""
    whole = undisturbed(case)
    run = start_run(case)
    in_round_3(run)
    run.send(signal.SIGINT)
    assert run.end(60) == 130, f"exit {run.code}"
    case.see(run, rf"stopped after round \d+ of {ROUNDS}.*{HOW_TO_RESUME}")
    assert_nothing_runs()
    resumes_to_the_same_end(case, case.folder / "run", whole)
    return stopped("the round that ran")


@fault()
def full_disk(case: Case) -> Outcome:
    """A disk that is full after a few checkpoints, then room and `--resume`."""
    whole = undisturbed(case)
    disk = case.folder / "disk"
    disk.mkdir()
    size = sum(file.stat().st_size for file in whole.rglob("*.safetensors")) * 5 // 8
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "small", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        return not_run("a small disk cannot be mounted here")
    try:
        run = nestfl(case, "full", "run", *SMALL, "name=run", f"output={disk}")
        assert run.end() == 1, f"exit {run.code}"
        case.see(run, "No space left on device")
        assert re.search(HOW_TO_RESUME, run.output()), "it does not say how to go on"
        subprocess.run(["mount", "-o", "remount,size=100m", str(disk)], check=True)
        resumes_to_the_same_end(case, disk / "run", whole)
        return stopped("the round whose checkpoint did not fit")
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)
