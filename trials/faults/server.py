"""Faults of the server: its certificates, its files, and a SuperLink that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from trials.faults.by_hand import NodeByHand
from trials.faults.case import Case, Outcome, fault, stopped, survived
from trials.faults.fleet import BUDGETS, Fleet, whole_fleet
from trials.faults.processes import find, wait_until
from trials.faults.runs import assert_same_end, rounds_of
from trials.faults.wire import Wire

ROUNDS = 3


@fault(480)
def killed_superlink(case: Case) -> Outcome:
    """kill -9 of the SuperLink between rounds, then a new one and `resume=`."""
    fleet = whole_fleet(case)
    run = fleet.submit("run", f"rounds={ROUNDS}", "deadline=120")
    fleet.wait_rounds("run", 1)
    fleet.kill_link()
    assert run.end(60) != 0, "exit 0 though the server is gone"
    case.see(run, "SuperLink is unavailable")
    return resume_with_all(case, fleet)


@fault(780)
def superlink_killed_in_a_pull(case: Case) -> Outcome:
    """kill -9 of the SuperLink when a node has just pulled its slice, a new one and `resume=`."""
    fleet = Fleet(case)
    fleet.prepare(*BUDGETS)
    # Its SuperNode has the whole slice and trains it, but cannot reply. Flower then forgets that
    # a reply will come, and sends it in place of the next one.
    state, moment = case.folder / "state", "/confirm-message-received"
    wire = Wire(fleet.port, state, moment, 1 + 2, fleet.kill_link)  # a question, two slices
    for partition, name in enumerate(BUDGETS):
        port = wire.port if name == "c" else fleet.port
        fleet.start_node(name, partition, LINK_PORT=str(port))
    fleet.wait_online(3)
    run = fleet.submit("run", f"rounds={ROUNDS}", "deadline=120")
    wait_until(wire.happened.is_set, "the second slice of c", 240)
    assert run.end(60) != 0, "exit 0 though the server is gone"
    return resume_with_all(case, fleet)


@fault(480)
def hung_serverapp(case: Case) -> Outcome:
    """kill -9 of the SuperLink while its ServerApp hangs (SIGSTOP), a new one and `resume=`."""
    fleet = Fleet(case)
    fleet.prepare(*BUDGETS)
    for partition, name in enumerate(BUDGETS):
        NodeByHand(fleet, name, partition)
    run = fleet.submit("run", f"rounds={ROUNDS}", "deadline=120")
    fleet.wait_rounds("run", 1)
    os.kill(find("flwr-serverapp"), signal.SIGSTOP)
    fleet.kill_link()
    assert run.end(60) != 0, "exit 0 though the server is gone"
    fleet.start_link()
    resumed = fleet.resume("run")
    code = resumed.end(300)
    case.see(resumed, "it is a ServerApp whose SuperLink is gone|in use by process")
    assert code == 0, f"exit {code}"
    assert fleet.rounds("run") == ROUNDS, f"{fleet.rounds('run')} rounds"
    return survived("the round that ran")


def resume_with_all(case: Case, fleet: Fleet) -> Outcome:
    """Start the SuperLink again; the run must end with the weights of an undisturbed one.

    It may ask for a restart of the node that was cut off.
    """
    fleet.start_link()
    fleet.wait_online(3)
    resumed = fleet.resume("run")
    stopped_first = resumed.end(420) != 0
    if stopped_first:
        case.see(resumed, r"Error: .*(node \d|level \d)")
        assert "restart its SuperNode" in resumed.output(), "it does not say what to do"
        fleet.nodes["c"].send_to_group(signal.SIGTERM)
        fleet.nodes["c"].end(60)
        fleet.start_node("c", 2)
        fleet.wait_online(3)
        again = fleet.resume("run")
        assert again.end() == 0, f"not even then: {again.output()[-200:]}"
    replied = [line["clients"]["replied"] for line in rounds_of(fleet.record("run"))]
    assert replied == [3] * ROUNDS, f"exit 0, and replies of 3 clients were {replied}"
    assert_same_end(fleet.record("run"), deployed_undisturbed(case, fleet))
    if stopped_first:
        return stopped("the round that ran; with the node restarted it is resumed")
    return survived("the round that ran")


def deployed_undisturbed(case: Case, fleet: Fleet) -> Path:
    """Return the record of the same run without a fault."""
    record = case.shared / "deployed"
    if not record.exists():
        whole = fleet.submit("whole", f"rounds={ROUNDS}", "deadline=120", f"output={case.shared}")
        assert whole.end() == 0, "the undisturbed run failed"
        (case.shared / "whole").rename(record)
    return record


@fault()
def bad_days(case: Case) -> Outcome:
    """`certificates.sh` with DAYS that are no number, where there is a certificate."""
    fleet = Fleet(case)
    assert fleet.script("certificates.sh").returncode == 0
    bad = fleet.script("certificates.sh", DAYS="soon")
    case.see(bad.stdout, "DAYS")
    assert bad.returncode != 0, "exit 0"
    state = case.folder / "state"
    of_key = openssl("pkey", "-in", str(state / "server.key"), "-pubout")
    of_certificate = openssl("x509", "-in", str(state / "server.pem"), "-noout", "-pubkey")
    assert of_key == of_certificate, "the key does not match the certificate any more"
    return stopped()


def openssl(*arguments: str) -> str:
    return subprocess.run(
        ["openssl", *arguments], check=True, capture_output=True, text=True
    ).stdout


@fault()
def database_that_others_read(case: Case) -> Outcome:
    """The SuperLink's database, on a machine with other users."""
    fleet = Fleet(case)
    fleet.prepare("a")
    mode = (case.folder / "state" / "superlink.db").stat().st_mode & 0o777
    case.saw = f"superlink.db has mode {mode:04o}"
    assert mode & 0o077 == 0, "others may read it"
    return survived()
