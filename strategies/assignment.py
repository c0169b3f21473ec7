"""What a client is given to do in a round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from protocol.work import Part
from strategies.nodes.enrolment import Client
from strategies.levels.submodels import Cut


@dataclass(frozen=True)
class Assignment:
    """A client, and the cut that it trains or tests: made once a round, and the reply's own.

    Its tensors are looked up when they are sent and when they come back, so that a round of many
    clients takes no more memory than one of few.
    """

    client: Client
    cut: Cut
    weight: float | None = None
    """What its update counts; None leaves that to the run's `weighting`."""
    told: Mapping[str, Any] = field(default_factory=dict)
    """What the client half is told: whatever JSON can hold."""
    turn: int = 0
    """How many assignments of this round its client has before it."""
    part: Part = "test"
    """Of the client's data, where the cut is to be tested."""
    personal: bool = False
    """Whether the client tests what it has trained, before it sends it back."""

    @property
    def level(self) -> int:
        """The number that reports know its level by."""
        return self.cut.level.number


def in_turn(assigned: Iterable[Assignment], told: Mapping[str, Any]) -> list[Assignment]:
    """Return assignments that know their turn, and tell their clients something more."""
    turns: Counter[int] = Counter()
    found = []
    for each in assigned:
        client = each.client.number
        found.append(replace(each, turn=turns[client], told={**each.told, **told}))
        turns[client] += 1
    return found
