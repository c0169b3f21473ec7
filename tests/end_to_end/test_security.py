"""Attacks on a deployment by the scripts of deploy/: the most important of docs/security.md.

`python -m trials.security` tries all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from flwr.app import Message

from trials.security import as_node, control, flood, tricks
from trials.security.as_node import SERVER, forged
from trials.security.door import Door
from trials.security.other_user import OtherUsersDoor, readable
from trials.security.outsiders import numbers
from trials.security.site import NGINX, Site

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(NGINX is None, reason="there is no nginx on this machine"),
]
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be another user, too")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    running = Site(tmp_path_factory.mktemp("security"))
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def mallory(site: Site) -> Door:
    """An attacker with the key of a registered device."""
    return Door(site.public, site.authority, site.key("m"))


def test_nothing_but_the_fleets_own_requests_comes_past_the_proxy(site: Site) -> None:
    found = tricks.try_all(site)
    unsigned = found.pop("`POST /v1/fleet/pull-messages`, not signed")
    behind = found.pop("Fleet, and Control behind it on one connection")
    assert (unsigned.answer, behind.answer) == ("401", "401, 403")
    assert {name for name, one in found.items() if one.answer not in ("403", "400", "501")} == set()


@pytest.mark.parametrize("who", ["nothing", "a device's key"])
def test_nobody_lists_stops_submits_or_takes_a_run_at_the_public_port(
    site: Site, mallory: Door, who: str
) -> None:
    door = Door(site.public) if who == "nothing" else mallory
    run = site.submit(site.app, seconds=1)
    assert control.list_runs(door).answer == "403"
    assert control.stop(site, door).answer == "403"
    assert [found.answer for found in control.submit(site, door)] == ["403", "403, no run"]
    assert control.ask_for_tasks(door, ["flwr-serverapp"])[0].status == 403
    site.stop_run(run)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_does_not_reach_the_superlink(site: Site, chunked: bool) -> None:
    found = flood.big_body(Door(site.public), site.processes["superlink"].pid, chunked, size=2**25)
    assert ": 413," in found.answer


def test_a_device_reads_and_writes_in_its_own_name_alone(site: Site, mallory: Door) -> None:
    mine, other = mallory.activate(), numbers(site)["b"]
    run = site.submit(site.app, seconds=10)
    message, _ = as_node.wait_for(site, run, other)
    assert as_node.pull_messages(mallory, other)[0].status == 401
    forgeries: list[Message] = [
        forged(run, SERVER, other),
        forged(run, SERVER, SERVER),
        forged(run, other, SERVER, message),
    ]
    for forgery in forgeries:
        answer, taken = as_node.push(mallory, mine, forgery)
        assert (answer.status, taken) == (403, False)
    site.stop_run(run)


def test_a_device_imports_no_code_but_what_it_allows_and_says_so(site: Site) -> None:
    submitted, code = control.submit(site, site.operator)
    assert submitted.possible
    assert not code.possible
    assert "the server is told: `this device does not run the code …`" in code.answer


@needs_root
def test_other_users_of_the_machine_are_refused_at_its_ports(site: Site) -> None:
    link, node = OtherUsersDoor(site.link), OtherUsersDoor(site.node_port, tls=False)
    assert control.list_runs(link).answer == "403"
    assert control.ask_for_tasks(link, ["flwr-serverapp"])[0].status == 403
    assert control.ask_for_tasks(node, ["flwr-clientapp"])[0].status == 403
    assert readable(site.state / "superlink.db", site.state / "server.key") == []
