"""The clients of a run: who has come, who was left out, and whether those who came will do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from flwr.serverapp import Grid

from strategies.federation import Federation, FederationError
from strategies.nodes.enrolment import Client, enrol

MOST_NAMED = 5
"""Nodes whose reasons a message tells."""

Ask = Callable[[Grid, Sequence[Client]], Mapping[int, str]]
"""Asks clients that have come what the method must know of them; returns the reasons why some of
them, by number, cannot take part."""

log = logging.getLogger("flwr")  # whose lines `flwr log` shows


class Roster:
    """Who takes part, and which levels have had clients."""

    def __init__(self, federation: Federation, ask: Ask) -> None:
        self.federation, self.ask = federation, ask
        self.clients: dict[int, Client] = {}
        """By the numbers that sampling and seeds go by."""
        self.left_out: dict[int, str] = {}
        """Nodes that are no clients, and why."""
        self.unanswered: set[int] = set()
        """Clients that did not answer in this round."""
        self.available = 0
        """Number of clients that were online when this round's clients were sampled."""
        self.held: set[int] = set()
        """Levels that have had clients in this run, before it was resumed too."""
        self._lost: set[int] = set()

    def enrol(self, grid: Grid, patience: float) -> None:
        """Ask the nodes that are not known yet what they are."""
        known = dict(self.clients)
        self.clients, left_out = enrol(grid, self.federation, known, self.left_out.keys(), patience)
        self.left_out |= left_out
        came = [each for number, each in self.clients.items() if known.get(number) != each]
        for number, why in self.ask(grid, came).items() if came else ():
            node = self.clients.pop(number).node
            self.left_out[node] = why
            log.warning("node %d is left out: %s", node, why)

    def online(self, grid: Grid) -> list[int]:
        """Return the numbers of the clients that are there; whoever is new is asked first."""
        nodes = set(grid.get_node_ids())
        # Who went away and comes back is asked again.
        self.left_out = {node: why for node, why in self.left_out.items() if node in nodes}
        if nodes - self.left_out.keys() - {client.node for client in self.clients.values()}:
            self.enrol(grid, patience=0)
        return [number for number, client in self.clients.items() if client.node in nodes]

    @property
    def answering(self) -> list[Client]:
        """Those who may be asked for more in this round: a dead node would take a deadline more."""
        return [each for number, each in self.clients.items() if number not in self.unanswered]

    def require_clients(self) -> None:
        """Stop a run to which fewer clients have come than its rounds need."""
        federation, came = self.federation, len(self.clients)
        needed = federation.required(came)
        if not came:
            reasons = _reasons(self.left_out, "no node is online")
            raise FederationError(f"no client has come: {reasons}")
        if came >= needed:
            return
        raise FederationError(
            f"{came} of {federation.fleet.clients} clients have come, but rounds of "
            f"{federation.clients_per_round} need {needed} (min_replies {federation.min_replies}): "
            f"{_reasons(self.left_out)}. Start more nodes, or ask for less: fleet.clients and "
            "clients_per_round, or min_replies (null trains with whoever comes)"
        )

    def require_online(self, round: int, there: int) -> None:
        """Stop a round for which too few clients are online."""
        if there < (needed := self.federation.required(len(self.clients))):
            raise FederationError(
                f"round {round}: {there} of {len(self.clients)} clients are online, "
                f"{needed} are needed"
            )

    def require_levels(self, has: AbstractSet[int]) -> None:
        """Stop a resumed run that lacks all clients of a level which it had, or only say so."""
        lost = self.held - has
        if not lost:
            return
        told = f"no client holds {_levels(lost)} any more, which this run trains: "
        told += _reasons(self.left_out)
        if self.federation.missing_levels == "stop":
            raise FederationError(
                f"{told}. Start its nodes, or restart those that are silent, then resume; "
                "missing_levels=warn goes on without"
            )
        log.warning("%s. Going on without, as missing_levels=warn says", told)

    def note(self, round: int, there: AbstractSet[int]) -> None:
        """Remember the levels that have clients, and say when one has lost its last."""
        self.held |= there
        lost = self.held - there
        if lost - self._lost:
            log.warning("round %d: no client of %s is online", round, _levels(lost))
        self._lost = lost


def _levels(numbers: AbstractSet[int]) -> str:
    return f"level{'s' if len(numbers) > 1 else ''} {', '.join(map(str, sorted(numbers)))}"


def _reasons(left_out: Mapping[int, str], nobody: str = "no other node is online") -> str:
    if not left_out:
        return nobody
    named = [f"node {node}: {why}" for node, why in list(left_out.items())[:MOST_NAMED]]
    more = len(left_out) - len(named)
    return "; ".join([*named, f"and {more} more nodes"] if more else named)
