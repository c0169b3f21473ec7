"""Attackers inside: other users of the server's or a device's machine, and the server itself."""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
from flwr.proto.fleet_pb2 import DeactivateNodeRequest
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.proto.runtime_pb2 import (
    PullAppMessagesRequest,
    PullAppMessagesResponse,
    PullTaskInputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

from trials.faults.processes import APP, wait_until
from trials.security import control, flood
from trials.security.bundles import evil, packed_again
from trials.security.case import (
    CODE,
    DEVICE_USER,
    FLOOD,
    LIST,
    SERVER_USER,
    SLICE,
    STOP,
    SUBMIT,
    TAKEN_OVER,
    TASK,
    WHAT,
    Findings,
    Found,
    attacker,
)
from trials.security.door import Answer, Door
from trials.security.other_user import OtherUsersDoor, as_other_user, readable, tokens, writable
from trials.security.outsiders import numbers
from trials.security.site import Site

SMALL = (
    "model=resnet20 strategy=heterofl model.norm=bn fleet.clients=1 clients_per_round=1 "
    "evaluate.every=0 dataset.max_train=90 dataset.max_test=30 dataset.test=0 train.epochs=1 "
    "train.device=cpu"
)
CLIENT_APP = r"flwr-clientapp |guarded\.client_app "
NOT_ROOT: Findings = dict.fromkeys(WHAT, Found(None, "not run: needs root"))


@attacker(SERVER_USER)
def user_of_the_server(site: Site) -> Findings:
    if os.getuid():
        return NOT_ROOT
    door = OtherUsersDoor(site.link)
    found = control.attack(site, door)
    link = flood.process_of(f"superlink .*--port {site.link}")
    flood.forget_peak(link)
    found[FLOOD] = as_other_user(lambda: flood.big_body(door, link, chunked=False))
    run = site.submit(site.app, seconds=3)
    seen = seen_tokens(str(site.link))
    found["`ps` on the server: the ServerApp's token"] = use_of(seen, door)
    site.stop_run(run)
    private = [file for file in site.state.rglob("*") if file.is_file() and file.suffix != ".pub"]
    names = readable(*(file for file in private if file.name != "ca.crt"))
    found["files of the server: keys, `superlink.db`"] = Found(
        bool(names), f"can be read: {', '.join(names)}" if names else "none can be read"
    )
    return found


@attacker(DEVICE_USER)
def user_of_a_device(site: Site) -> Findings:
    if os.getuid():
        return NOT_ROOT
    door = OtherUsersDoor(site.node_port, tls=False)
    site.restart_device()  # it may still hold answers to runs that were stopped
    found: Findings = {
        LIST: control.list_runs(door),
        STOP: control.stop(site, door),
        SUBMIT: control.submit(site, door)[0],
    }
    run = site.submit(site.app, seconds=20)
    wait_until(lambda: bool(flood.processes_of(CLIENT_APP)), "a ClientApp", 60)
    seen = seen_tokens(str(site.node_port), 3)
    found["`ps` on a device: the ClientApp's token"] = use_of(seen, door)
    site.stop_run(run)
    found[TASK], found[SLICE] = take_client_task(site, door)
    installed = [file for file in site.state.rglob("*.py") if "apps" in file.parts]
    names = writable(*installed)
    said = f"of {len(installed)} files of code that node a runs, {len(names)} can be changed"
    found[CODE] = Found(bool(names), said)
    node = flood.process_of(f"supernode .*--port {site.node_port}")
    flood.forget_peak(node)
    path = "/v1/runtime/acquire-task"
    found[FLOOD] = as_other_user(lambda: flood.big_body(door, node, chunked=False, path=path))
    return found


def take_client_task(site: Site, door: OtherUsersDoor) -> tuple[Found, Found]:
    """Ask a SuperNode for its task, faster than its own process; read the task's input."""
    answer = Answer(0, why="never asked")
    for _ in range(control.ATTEMPTS):
        run = site.submit(site.app, seconds=20)
        answer, token = ask_for_long(door)
        if token:
            door.post("/v1/runtime/pull-task-input", PullTaskInputRequest(), token)
            read = slice_of(door, token)
            site.stop_run(run)
            said = "its messages, with that token" if b"slice of" in read else "nothing"
            return Found(True, f"{answer}, the ClientApp's token"), Found(b"slice of" in read, said)
        site.stop_run(run)
        if not answer.good:
            break
    return Found(False, str(answer)), Found(False, f"{answer}, no token")


def ask_for_long(door: OtherUsersDoor) -> tuple[Answer, str]:
    """Ask until there is a task, which takes as long as the server needs to send one."""
    end = time.monotonic() + 20
    answer, token = Answer(0, why="never asked"), ""
    with ThreadPoolExecutor(1) as pool:
        while time.monotonic() < end and not token:
            answer, token = pool.submit(control.ask_for_tasks, door, ["flwr-clientapp"]).result()
            if not answer.good:
                break
    return answer, token


def slice_of(door: OtherUsersDoor, token: str) -> bytes:
    """Return all parts of the message for a ClientApp with this token."""
    asked = door.post("/v1/runtime/pull-messages", PullAppMessagesRequest(), token)
    found = asked.read(PullAppMessagesResponse)
    parts = [part for tree in found.message_object_trees for part in iterate_object_tree(tree)]
    read = b""
    for part in parts:
        asked = door.post(
            "/v1/runtime/pull-object", PullObjectRequest(object_id=part.object_id), token
        )
        read += asked.read(PullObjectResponse).object_content
    return read


def seen_tokens(words: str, seconds: float = 20.0) -> list[str]:
    """Return the command lines with tokens that another user sees within some time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if seen := tokens(words):
            return seen
        time.sleep(0.1)
    return []


def use_of(seen: list[str], door: OtherUsersDoor) -> Found:
    """Return the result of using a token that was seen."""
    if not seen:
        return Found(False, "not shown")
    token = seen[0].split("--token ")[1].split()[0]
    answer = door.post("/v1/runtime/send-task-heartbeat", SendTaskHeartbeatRequest(), token)
    return Found(answer.good, f"shown; used by another user: {answer}")


@attacker(TAKEN_OVER)
def the_server(site: Site) -> Findings:
    site.restart_device()  # it may still hold answers to runs that were stopped
    found = control.attack(site, site.operator)
    found[FLOOD] = Found(None, "not tried: a server can always send too much, or nothing")
    found["the server names a file of the device: `dataset.path=…`"] = named_path(site)
    found["the server sends allowed code, packed in another way"] = sent(site, "again")
    found["the server sends other code under an allowed code's hash"] = sent(site, "swapped", True)
    return found


def named_path(site: Site) -> Found:
    """Start a run that names the path of a device's data; check if a device opens it."""
    path = site.folder / "private.npz"
    np.savez(path, x=np.zeros((200, 8, 8), np.uint8), y=np.arange(200) % 10)
    for name, number in numbers(site).items():
        if name != "a":  # they would not answer
            door = Door(site.public, site.authority, site.key(name))
            door.post("/v1/fleet/deactivate-node", DeactivateNodeRequest(node_id=number))
    script = str(APP / "deploy" / "submit.sh")
    run = site.run("named-path", script, *SMALL.split(), "rounds=1", f"dataset.path={path}")
    if run.end(240) == 0:
        return Found(True, "node a opened it, and trained on it")
    refusal = re.search("this device opens no path that a server names", run.output())
    return Found(False, f"the server is told: `{refusal[0]}`" if refusal else "the run failed")


def sent(site: Site, comment: str, swapped: bool = False) -> Found:
    """Send the harmless app under its hash; if `swapped`, with evil code under that hash."""
    marker, told = control.new_file(site), control.new_file(site)
    fab = packed_again(site.app, comment)
    run = site.submit(fab, told=str(told), seconds=15)
    if swapped:
        site.wait_status(run, "running")  # the server's part has its code
        swap(site.state / "superlink.db", fab, evil(marker))
    found = control.watch(site, run, marker, told)
    if found.possible or "FAB hash mismatch" not in site.processes["a"].output():
        return found
    words = f"supernode .*--port {site.node_port}"
    then = "is deaf from then on" if flood.processes_of(words) else "ends"
    return Found(False, f"Flower's SuperNode refuses it (`FAB hash mismatch`), and {then}")


def swap(database: Path, fab: bytes, content: bytes) -> None:
    """Replace a run's code in the database, as an attacker on the server can."""
    with closing(sqlite3.connect(database, timeout=30)) as connection, connection:
        hashed = hashlib.sha256(fab).hexdigest()
        change = "UPDATE fab SET content = ? WHERE fab_hash = ?"
        assert connection.execute(change, [content, hashed]).rowcount == 1
