"""Whether those who have come will do: enough clients, and some for each level that had any."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from strategies.federation import Federation, FederationError

MOST_NAMED = 5
"""Nodes whose reasons a message tells."""

log = logging.getLogger("flwr")  # whose lines `flwr log` shows


class Attendance:
    """Who must be there, and which levels have had clients."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.held: set[int] = set()
        """Levels that have had clients in this run, before it was resumed too."""
        self._lost: set[int] = set()

    def require_clients(self, came: int, left_out: Mapping[int, str]) -> None:
        """Stop a run to which fewer clients have come than its rounds need."""
        federation = self.federation
        needed = federation.required(came)
        if not came:
            raise FederationError(f"no client has come: {_reasons(left_out, 'no node is online')}")
        if came >= needed:
            return
        raise FederationError(
            f"{came} of {federation.clients} clients have come, but rounds of "
            f"{federation.clients_per_round} need {needed} (min_replies {federation.min_replies}): "
            f"{_reasons(left_out)}. Start more nodes, or ask for less: fleet.clients and "
            "clients_per_round, or min_replies (null trains with whoever comes)"
        )

    def require_levels(self, has: AbstractSet[int], left_out: Mapping[int, str]) -> None:
        """Stop a resumed run that lacks all clients of a level which it had, or only say so."""
        lost = self.held - has
        if not lost:
            return
        told = f"no client holds {_levels(lost)} any more, which this run trains: "
        told += _reasons(left_out)
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
