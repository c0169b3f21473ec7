"""Keeps the clients of a run: enrolled, left out, or offline, and checks that enough are there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from flwr.serverapp import Grid

from strategies.federation import Federation, FederationError
from strategies.nodes.enrolment import Client, enrol

MOST_NAMED = 5
"""Most nodes that a message lists with their reasons."""

Ask = Callable[[Grid, Sequence[Client]], Mapping[int, str]]
"""Asks newly enrolled clients the method's own questions. Returns the reason, by client number,
for each client that cannot take part."""

log = logging.getLogger("flwr")  # the logger that `flwr log` shows


class Roster:
    """The enrolled clients, and the levels that have had clients."""

    def __init__(self, federation: Federation, ask: Ask) -> None:
        self.federation, self.ask = federation, ask
        self.clients: dict[int, Client] = {}
        """Clients by the numbers that sampling and seeds use."""
        self.left_out: dict[int, str] = {}
        """Nodes that are not clients, with the reason."""
        self.unanswered: set[int] = set()
        """Clients that did not reply in this round."""
        self.available = 0
        """Number of clients that were online when this round's clients were sampled."""
        self.held: set[int] = set()
        """Levels that have had clients in this run, including before a resume."""
        self._lost: set[int] = set()

    def enrol(self, grid: Grid, patience: float) -> None:
        """Enrol the nodes that are not known yet."""
        known = dict(self.clients)
        self.clients, left_out = enrol(grid, self.federation, known, self.left_out.keys(), patience)
        self.left_out |= left_out
        came = [each for number, each in self.clients.items() if known.get(number) != each]
        for number, why in self.ask(grid, came).items() if came else ():
            node = self.clients.pop(number).node
            self.left_out[node] = why
            log.warning("node %d is left out: %s", node, why)

    def online(self, grid: Grid) -> list[int]:
        """Return the numbers of the clients that are online; new nodes are enrolled first."""
        nodes = set(grid.get_node_ids())
        # A node that left and comes back is enrolled again.
        self.left_out = {node: why for node, why in self.left_out.items() if node in nodes}
        if nodes - self.left_out.keys() - {client.node for client in self.clients.values()}:
            self.enrol(grid, patience=0)
        return [number for number, client in self.clients.items() if client.node in nodes]

    @property
    def answering(self) -> list[Client]:
        """Clients that may be asked again in this round; a dead node would cost another
        deadline."""
        return [each for number, each in self.clients.items() if number not in self.unanswered]

    def require_clients(self) -> None:
        """Stop a run that has fewer clients than its rounds need."""
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
        """Stop a resumed run that has lost all clients of a level, or warn (`missing_levels`)."""
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
        """Record the levels that have clients, and warn when a level has lost its last one."""
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
