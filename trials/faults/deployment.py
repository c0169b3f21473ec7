"""Faults of deployed nodes: killed, late, too few, unknown ones, and wrong profiles."""

from __future__ import annotations

import json
import re
import signal

from trials.faults.case import Case, Outcome, fault, stopped, survived
from trials.faults.fleet import BUDGETS, Fleet, whole_fleet
from trials.faults.processes import BIN, Process, free_port, listens, wait_until
from trials.faults.runs import rounds_of

DEADLINE = 40
TLS = re.compile(r"\bTLS\b|certificate of another authority")


def two_of_three_answer(case: Case, number: signal.Signals) -> Fleet:
    """Send a signal to node `a` while it trains in round 1; the run must end without its reply."""
    fleet = whole_fleet(case)
    run = fleet.submit("run", "rounds=2", f"deadline={DEADLINE}")
    fleet.wait_training("a", 1)
    fleet.nodes["a"].send_to_group(number)
    code = run.end(240)
    case.see(run, r"round 1/2|finished:")
    assert code == 0, f"exit {code}"
    first, second = rounds_of(fleet.record("run"))
    assert first["clients"]["replied"] == 2, f"{first['clients']}"
    assert first["clients"]["failed"], "the failure is not counted"
    assert second["clients"]["replied"] >= 2, f"{second['clients']}"
    assert first["seconds"] < DEADLINE + 15, f"round 1 took {first['seconds']:.0f} s"
    return fleet


@fault(360)
def killed_node(case: Case) -> Outcome:
    """kill -9 of a SuperNode in a round with a deadline."""
    two_of_three_answer(case, signal.SIGKILL)
    return survived("the node's replies")


@fault(360)
def late_node(case: Case) -> Outcome:
    """A SuperNode that hangs (SIGSTOP) beyond the round's deadline."""
    fleet = two_of_three_answer(case, signal.SIGSTOP)
    failed = rounds_of(fleet.record("run"))[0]["clients"]["failed"]
    assert failed.keys() <= {"late", "node-gone"}, f"failed: {failed}"  # gone: no heartbeats
    assert "round 1/2" in case.saw, "the log has no line for each round"
    return survived("the node's replies")


@fault()
def too_few_at_the_start(case: Case) -> Outcome:
    """One of three nodes is online, and `min_replies=1.0`."""
    fleet = Fleet(case)
    fleet.prepare(*BUDGETS)
    fleet.start_node("c", 2)
    fleet.wait_online(1)
    run = fleet.submit("run", "rounds=1", "min_replies=1.0")
    code = run.end(200)
    case.see(run, r"\b1 of 3\b")
    assert code != 0, f"exit 0 with {fleet.rounds('run')} rounds of one client"
    assert fleet.rounds("run") == 0, "rounds were trained"
    return stopped()


@fault()
def nobody_affords_the_full_model(case: Case) -> Outcome:
    """Budgets are the devices' own, and none of them affords the full model."""
    fleet = Fleet(case)
    fleet.prepare(*BUDGETS)
    for partition, (name, budget) in enumerate({"a": 0.15, "b": 0.3, "c": 0.5}.items()):
        fleet.start_node(name, partition, budget)
    fleet.wait_online(3)
    run = fleet.submit("run", "rounds=1")
    code = run.end(200)
    case.see(run, "affords the full model")
    assert code != 0, "exit 0: the full model was not trained, and its accuracy is told"
    return stopped()


@fault()
def partition_of_another(case: Case) -> Outcome:
    """Two nodes say that they hold the same partition."""
    fleet = Fleet(case)
    fleet.prepare(*BUDGETS)
    for partition, name in ((0, "a"), (0, "b"), (2, "c")):
        fleet.start_node(name, partition)
    fleet.wait_online(3)
    run = fleet.submit("run", "rounds=1")
    code = run.end(200)
    case.see(run, "two nodes say that they hold partition 0")
    assert code == 0, f"exit {code}"
    replied = rounds_of(fleet.record("run"))[0]["clients"]["replied"]
    assert replied == 2, f"{replied} clients were counted"
    return survived("the second node's replies")


@fault()
def unknown_key(case: Case) -> Outcome:
    """A SuperNode whose key is not registered."""
    fleet = Fleet(case)
    fleet.prepare("a")
    fleet.script("keys.sh", "stranger")
    fleet.start_node("stranger", 0)
    stranger = fleet.nodes["stranger"]
    assert stranger.end(60) != 0, "exit 0"
    case.see(stranger, "Failed to activate SuperNode")
    return stopped()


@fault()
def plaintext_superlink(case: Case) -> Outcome:
    """A SuperNode against a SuperLink without TLS."""
    fleet = Fleet(case)
    fleet.make_keys("a")
    serve = ["--insecure", "--host", "127.0.0.1", "--port", str(fleet.port)]
    Process([str(BIN / "flower-superlink"), *serve], case.log("link"), case.folder, fleet.env)
    wait_until(lambda: listens(fleet.port), "the SuperLink", 60)
    return says_that_tls_is_the_matter(case, fleet)


@fault()
def other_authority(case: Case) -> Outcome:
    """A SuperNode that trusts another certificate authority than the SuperLink's."""
    fleet = Fleet(case)
    fleet.prepare("a")
    state = case.folder / "state"
    for file in state.glob("ca.*"):
        file.unlink()
    assert fleet.script("certificates.sh").returncode == 0
    return says_that_tls_is_the_matter(case, fleet)


def says_that_tls_is_the_matter(case: Case, fleet: Fleet) -> Outcome:
    fleet.start_node("a", 0)
    node = fleet.nodes["a"]
    wait_until(lambda: node.ended or bool(TLS.search(node.output())), "a word of TLS", 30)
    case.see(node, TLS.pattern)
    return stopped()


@fault()
def plaintext_node(case: Case) -> Outcome:
    """`flower-supernode --insecure`, without supernode.sh, against a SuperLink with TLS."""
    fleet = Fleet(case)
    fleet.prepare("a")
    link = ["--superlink", f"127.0.0.1:{fleet.port}", "--port", str(free_port())]
    command = [str(BIN / "flower-supernode"), "--insecure", *link]
    node = Process(command, case.log("node"), case.folder, fleet.env)
    node.until("retrying", 40)
    case.see(node, "retrying")
    return Outcome("Flower's own words: docs/deploy.md says what they mean", "nothing")


@fault()
def registered_twice(case: Case) -> Outcome:
    """`register.sh` with keys of which some are registered."""
    fleet = Fleet(case)
    fleet.prepare("a", "b")
    fleet.script("keys.sh", "c")
    again = fleet.script("register.sh")
    case.see(again.stdout, "(?i)already")
    assert again.returncode == 0, f"exit {again.returncode}"
    command = [str(BIN / "flwr"), "supernode", "list", "nestfl", "--format", "json"]
    listed = Process(command, case.log("list"), case.folder, fleet.env)
    assert listed.end() == 0
    nodes = json.loads(listed.output())["nodes"]
    assert len(nodes) == 3, f"{len(nodes)} of 3 nodes are registered"
    return survived()
