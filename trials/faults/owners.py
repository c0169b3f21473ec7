"""Faults of ownership: directories and a checkout that belong to another user."""

from __future__ import annotations

import os
import shutil

from trials.faults.case import Case, Outcome, fault, not_run, stopped, survived
from trials.faults.processes import APP, NOBODY
from trials.faults.runs import ROUNDS, SMALL, home_of_nobody, nestfl, undisturbed

NEEDS_ROOT = "changing to another user needs root"


@fault()
def read_only_directory(case: Case) -> Outcome:
    """`--resume` of a directory that the user may read and not write."""
    if os.getuid():
        return not_run(NEEDS_ROOT)
    record = case.folder / "copied"
    shutil.copytree(undisturbed(case), record)
    before = {file: file.stat().st_mtime_ns for file in record.rglob("*")}
    run = nestfl(
        case,
        "resumed",
        "run",
        "--resume",
        str(record),
        f"rounds={ROUNDS + 1}",
        home=home_of_nobody(case),
    )
    assert run.end() != 0
    case.see(run, r"(?i)copied.*(permission|writ|read-only)|(permission|writ|read-only).*copied")
    assert "Traceback" not in run.output(), "a traceback"
    assert before == {file: file.stat().st_mtime_ns for file in record.rglob("*")}, "it was changed"
    return stopped()


@fault()
def checkout_of_another_user(case: Case) -> Outcome:
    """`nestfl run` from a checkout that belongs to another user."""
    if os.getuid():
        return not_run(NEEDS_ROOT)
    assert APP.stat().st_uid != NOBODY
    home = home_of_nobody(case)
    overrides = ["rounds=1", "name=run", f"output={home}"]
    run = nestfl(case, "run", "run", *SMALL, *overrides, home=home)
    code = run.end()
    case.see(run, r"(?i)^round 1/1|permission")
    assert code == 0, "the run failed"
    assert (home / "run" / "summary.json").exists()
    return survived()
