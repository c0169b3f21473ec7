"""Attackers on the network: with nothing, with `ca.crt`, and with a registered device's key."""

from __future__ import annotations

import time

from flwr.proto.control_pb2 import ListNodesRequest, ListNodesResponse

from trials.security import as_node, control, flood
from trials.security.as_node import SERVER, forged
from trials.security.case import (
    AUTHORITY,
    FLOOD,
    KEY,
    NOTHING,
    SLICE,
    Findings,
    Found,
    attacker,
)
from trials.security.door import Door
from trials.security.site import Site
from trials.security.tricks import try_all


def summary(found: list[Found]) -> Found:
    """Return several attempts as one result."""
    possible = any(one.possible for one in found)
    return Found(possible, "; ".join(one.answer for one in found))


@attacker(NOTHING)
def with_nothing(site: Site) -> Findings:
    door, link = Door(site.public), flood.process_of(f"superlink .*--port {site.link}")
    found = try_all(site) | control.attack(site, door)
    bodies = [flood.big_body(door, link, chunked) for chunked in (False, True)]
    shut = Door(site.second_proxy()).post("/v1/fleet/pull-messages")
    name = "`POST /v1/fleet/pull-messages` without a certificate, `CLIENT_CERTIFICATES=on`"
    found[name] = Found(shut.status in (200, 401), str(shut))
    return found | {FLOOD: summary([*bodies, flood.many(door), flood.slow(door)])}


@attacker(AUTHORITY)
def with_authority(site: Site) -> Findings:
    door = Door(site.public, site.authority)
    link = flood.process_of(f"superlink .*--port {site.link}")
    found = control.attack(site, door)
    return found | {FLOOD: flood.big_body(door, link, chunked=False)}


@attacker(KEY)
def with_key(site: Site) -> Findings:
    door = Door(site.public, site.authority, site.key("m"))
    link = flood.process_of(f"superlink .*--port {site.link}")
    found = control.attack(site, door)
    mine = door.activate()
    run = site.submit(site.app, seconds=30)
    number = numbers(site)["b"]
    message, parts = as_node.wait_for(site, run, number)
    answer, _ = as_node.pull_messages(door, number)
    found["`pull-messages` of another node"] = Found(answer.good, str(answer))
    time.sleep(2)  # until the server has sent all of it
    answer, content = as_node.pull_object(door, mine, run, parts[0])
    by_hash = Found(bool(content), f"{answer}, {len(content)} bytes")
    found["`pull-object` of another node's slice, if its SHA-256 is known"] = by_hash
    answer, code = as_node.get_code(door, mine, run)
    found["`get-run`, `get-fab`: the code of the run, which is every device's"] = Found(
        bool(code), f"{answer}, {len(code)} bytes"
    )
    for name, forgery in {
        "`push-messages`: an order to another node, in the server's name": forged(
            run, SERVER, number
        ),
        "`push-messages`: to the ServerApp, in the server's name": forged(run, SERVER, SERVER),
        "`push-messages`: a reply in another node's name, if its message's id is known": forged(
            run, number, SERVER, message
        ),
    }.items():
        answer, taken = as_node.push(door, mine, forgery)
        found[name] = Found(taken, str(answer))
    time.sleep(3)
    site.stop_run(run)
    messages = found["`pull-messages` of another node"]
    found[SLICE] = Found(
        found[SLICE].possible or messages.possible,
        f"{found[SLICE].answer}; its messages: {messages.answer}; but see `pull-object` below",
    )
    return found | {FLOOD: flood.big_body(door, link, chunked=False)}


def numbers(site: Site) -> dict[str, int]:
    """Return the nodes' numbers by name, known to the operator but not to attackers."""
    answer = site.operator.post("/v1/control/list-nodes", ListNodesRequest())
    found = {node.public_key: node.node_id for node in answer.read(ListNodesResponse).nodes_info}
    return {name: found[site.key(name).public] for name in ("a", "b", "m")}
