"""Defines an attack: an attacker, a deployment, and the results of its attempts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trials.security.site import Site

NOTHING, AUTHORITY, KEY = "nothing", "ca-crt", "device-key"
SERVER_USER, DEVICE_USER, TAKEN_OVER = "server-user", "device-user", "server-taken-over"
WHO = {
    NOTHING: "nothing",
    AUTHORITY: "`ca.crt`",
    KEY: "a registered device's key",
    SERVER_USER: "another user of the server's machine",
    DEVICE_USER: "another user of a device's machine",
    TAKEN_OVER: "the server, taken over",
}
LIST, STOP, SUBMIT, TASK = "list runs", "stop a run", "submit a run", "take a task"
FLOOD, CODE, SLICE = "flood", "run code on a device", "read another device's slice"
WHAT = (LIST, STOP, SUBMIT, TASK, FLOOD, CODE, SLICE)


@dataclass(frozen=True)
class Found:
    """The result of an attempt: if it was possible, and the answer."""

    possible: bool | None
    """None if there is nothing to try."""
    answer: str

    def __str__(self) -> str:
        verdict = {True: "**yes**: ", False: "no: ", None: ""}[self.possible]
        return verdict + self.answer


Findings = dict[str, Found]
"""Results by attempt: a column of the table, or a request of the list."""


@dataclass(frozen=True)
class Attacker:
    """An attacker and all its attempts."""

    name: str
    attack: Callable[[Site], Findings]


ATTACKERS: dict[str, Attacker] = {}


def attacker(name: str) -> Callable[[Callable[[Site], Findings]], None]:
    """Add a function that makes all attempts of an attacker."""

    def register(attack: Callable[[Site], Findings]) -> None:
        ATTACKERS[name] = Attacker(name, attack)

    return register
