"""The replies of one round: each is checked and added to the sums as it arrives, and counted."""

from __future__ import annotations

import math
from collections.abc import Callable

from flwr.app import Message
from torch import Tensor

from models import State
from protocol.reading import ProtocolError
from protocol.records import Trained, read_slice
from protocol.records import size as size_of
from strategies.aggregation.nested_mean import NestedMean, RefusedStateError
from strategies.federation import Federation, FederationError, Tally
from strategies.levels.submodels import Submodel
from strategies.rounds.enrolment import Client
from strategies.rounds.streaming import Reply


def check_examples(trained: Trained, client: Client) -> None:
    """Refuse a reply that claims examples which its client does not have."""
    if not 1 <= trained.examples <= client.profile.examples:
        raise RefusedStateError(
            "examples",
            f"{trained.examples} claimed, but client {client.number} has {client.profile.examples}",
        )


class Fold:
    """The nested mean of one round's replies."""

    def __init__(
        self,
        federation: Federation,
        submodel_of: Callable[[Client], Submodel],
        start: State,
        tally: Tally,
    ) -> None:
        self.federation, self.submodel_of, self.tally = federation, submodel_of, tally
        self.start = start
        """The global state that this round's slices were cut from."""
        self.mean = NestedMean()
        self.silent: set[int] = set()
        """Clients that did not answer."""
        self._losses: dict[int, float] = {}

    def add(self, reply: Reply[Client]) -> None:
        self.tally.done += 1
        if reply.message is None:
            reason = reply.failure or "failed"
            if not reply.refused:
                self.silent.add(reply.to.number)
            (self.tally.refused if reply.refused else self.tally.failed)[reason] += 1
            self.tally.details[reason] = reply.detail
            self.tally.problems[reply.to.number] = f"{reason} {reply.detail}".strip()
            return
        try:
            self._losses[reply.to.number] = self._accept(reply.to, reply.message).loss
            self.tally.accepted += 1
        except RefusedStateError as refusal:
            self.tally.refused[refusal.reason] += 1
            self.tally.details[refusal.reason] = str(refusal)
            self.tally.problems[reply.to.number] = str(refusal)

    def result(self, round: int) -> dict[str, Tensor]:
        """The new global state, if enough clients gave a usable reply."""
        self.tally.loss = sum(loss for _, loss in sorted(self._losses.items()))
        self._require_enough(round)
        return self.mean.result(self.start)

    def _accept(self, client: Client, message: Message) -> Trained:
        submodel = self.submodel_of(client)
        content = message.content
        sums = self.tally.slices[submodel.number]
        sums.up += size_of(content)
        try:
            trained, state = Trained.read(content), read_slice(content, submodel.form)
        except ProtocolError as error:
            raise RefusedStateError(error.reason, str(error)) from None
        check_examples(trained, client)
        if not math.isfinite(trained.loss):
            raise RefusedStateError("non-finite", f"the loss is {trained.loss}")
        self.federation.max_update.check(state, submodel.map, self.start)
        by_examples = self.federation.weighting == "examples"
        self.mean.add(state, submodel.map, trained.examples if by_examples else 1)
        sums.replied += 1
        sums.seconds = max(sums.seconds, trained.seconds)
        return trained

    def _require_enough(self, round: int) -> None:
        needed = self.federation.needed(self.tally.sampled)
        if self.tally.accepted < needed:
            reasons = {**self.tally.failed, **self.tally.refused}
            described = "; ".join(
                f"{count} {reason} ({self.tally.details.get(reason) or 'no detail'})"
                for reason, count in reasons.items()
            )
            raise FederationError(
                f"round {round}: {self.tally.accepted} of {self.tally.sampled} clients gave a "
                f"usable reply, {needed} are needed: {described}"
            )
