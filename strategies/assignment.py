"""What a client is given to do in a round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from strategies.fleet.enrolment import Client
from strategies.levels.submodels import Submodel


@dataclass(frozen=True, eq=False)
class Assignment:
    """A client, and the submodel that it trains or tests: made once a round, and the reply's own.

    Its level, window and banks are the submodel's.
    """

    client: Client
    submodel: Submodel
    weight: float | None = None
    """What its update counts; None leaves that to the run's `weighting`."""
    told: Mapping[str, Any] = field(default_factory=dict)
    """What the client half is told: whatever JSON can hold."""

    @property
    def level(self) -> int:
        """The number that reports know its level by."""
        return self.submodel.level.number
