"""Attacks on the SuperLink's own APIs: list, stop and submit runs, and take their tasks."""

from __future__ import annotations

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flwr.common.serde import run_from_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListRunsRequest,
    ListRunsResponse,
    StartRunRequest,
    StartRunResponse,
    StopRunRequest,
)
from flwr.proto.fab_pb2 import Fab
from flwr.proto.run_pb2 import Run
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    AcquireTaskResponse,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PullTaskInputResponse,
)

from trials.faults.processes import PATIENCE, wait_until
from trials.security.as_node import SERVER, forged
from trials.security.bundles import evil
from trials.security.case import CODE, LIST, SLICE, STOP, SUBMIT, TASK, Findings, Found
from trials.security.door import Answer, Door
from trials.security.site import Site

ATTEMPTS = 3
ASKED_AT_MOST = 200
"""Most times that an attacker asks for a task."""


def attack(site: Site, door: Door) -> Findings:
    """Try all attacks at one door."""
    task = take_task(site, door)
    submitted, code = submit(site, door)
    return {
        LIST: list_runs(door),
        STOP: stop(site, door),
        SUBMIT: submitted,
        TASK: task.found,
        CODE: code,
        SLICE: read_update(door, task),
    }


def list_runs(door: Door) -> Found:
    """Request the list of runs."""
    answer = door.post("/v1/control/list-runs", ListRunsRequest())
    runs = answer.read(ListRunsResponse).run_dict
    return Found(bool(runs), f"{answer}, {len(runs)} runs" if runs else str(answer))


def stop(site: Site, door: Door) -> Found:
    """Stop a run of the operator's."""
    run = site.submit(site.app, seconds=5)
    answer = door.post("/v1/control/stop-run", StopRunRequest(run_id=run))
    status = site.status(run)
    site.stop_run(run)
    stopped = status == "finished:stopped"
    return Found(stopped, f"{answer}, {status}" if stopped else str(answer))


def submit(site: Site, door: Door) -> tuple[Found, Found]:
    """Submit a run of code that no device should import; check if a device imports it."""
    marker, told = new_file(site), new_file(site)
    config = user_config_to_proto({"told": str(told), "seconds": 15})
    asked = StartRunRequest(fab=Fab(content=evil(marker)), override_config=config)
    answer = door.post("/v1/control/start-run", asked)
    run = answer.read(StartRunResponse).run_id
    if not run:
        return Found(False, str(answer)), Found(False, f"{answer}, no run")
    code = watch(site, run, marker, told)
    return Found(True, f"{answer}, a run"), code


def new_file(site: Site) -> Path:
    """Return a free path that devices and the server can write."""
    return site.folder / f"made-{time.monotonic_ns()}"


def watch(site: Site, run: int, marker: Path, told: Path) -> Found:
    """Wait until a device has imported a run's code, or the run has ended."""

    def over() -> bool:
        return marker.exists() or site.status(run).startswith("finished")

    with suppress(AssertionError):
        wait_until(over, "the end of a run", 90)
    site.stop_run(run)
    if marker.exists():
        return Found(True, "node a imported it")
    answers = json.loads(told.read_text()) if told.exists() else []
    errors = [text for _, text in answers]
    if any("slice of" in text for text in errors):
        return Found(None, "its own code ran, and answered")
    refusal = re.search(r"this device does not run the code|FAB hash mismatch", " ".join(errors))
    if refusal:
        return Found(False, f"not imported, and the server is told: `{refusal[0]} …`")
    return Found(False, f"not imported; the server is told: {' '.join(errors)[:80] or 'nothing'}")


@dataclass(frozen=True)
class Task:
    """The task of a run that an attacker has taken, if any."""

    found: Found
    token: str = ""
    run: Run | None = None


def take_task(site: Site, door: Door) -> Task:
    """Ask for the ServerApp's task of a run that the operator submits, faster than Flower."""
    answer = Answer(0, why="never asked")
    for _ in range(ATTEMPTS):
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(ask_for_tasks, door, ["flwr-serverapp"])
            time.sleep(0.2)
            run = site.submit(site.app, seconds=2)
            answer, token = asking.result()
        if token:
            given = door.post("/v1/runtime/pull-task-input", PullTaskInputRequest(), token)
            input_ = given.read(PullTaskInputResponse)
            said = f"{answer}, the ServerApp's token; {given}, the run and its code"
            return Task(Found(bool(input_.fab.content), said), token, input_.run)
        site.stop_run(run)
        if not answer.good:
            break
    return Task(Found(False, str(answer)))


def ask_for_tasks(door: Door, kinds: list[str]) -> tuple[Answer, str]:
    """Ask for a task repeatedly, until there is one or access is refused."""
    asked = AcquireTaskRequest(supported_task_types=kinds)
    answer = Answer(0, why="never asked")
    with door.client() as client:
        for _ in range(ASKED_AT_MOST):
            answer = door.post("/v1/runtime/acquire-task", asked, client=client)
            if not answer.good:
                break
            if token := answer.read(AcquireTaskResponse).token:
                return answer, token
    return answer, ""


def read_update(door: Door, task: Task) -> Found:
    """Request the devices' updates with the ServerApp's token, as the server does."""
    if task.run is None:
        answer = door.post("/v1/runtime/pull-messages", PullAppMessagesRequest())
        return Found(False, f"{answer}, no token")
    grid = door.grid(task.token)
    grid.set_run(run_from_proto(task.run))
    asked = [forged(task.run.run_id, SERVER, node) for node in grid.get_node_ids()]
    waiting, end = set(grid.push_messages(asked)), time.monotonic() + 60 * PATIENCE
    while time.monotonic() < end:
        for reply in grid.pull_messages(waiting):
            if reply.has_content():
                return Found(True, "200, with that token, and node a's answer")
        time.sleep(0.5)
    return Found(False, "no reply")
