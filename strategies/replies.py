"""The replies of one round: each is checked and folded as it arrives, and counted."""

from __future__ import annotations

import math
from collections.abc import Callable

from flwr.app import Message
from torch import Tensor

from models import State
from protocol.reading import ProtocolError
from protocol.records import read_slice
from protocol.records import size as size_of
from protocol.reports import Trained
from protocol.train_settings import TrainSettings
from strategies.aggregation.aggregators import Aggregator
from strategies.aggregation.update import RefusedUpdateError, Update
from strategies.assignment import Assignment
from strategies.federation import Federation, FederationError
from strategies.nodes.enrolment import Client
from strategies.nodes.exchange import Reply
from strategies.levels.cost import TRAINING_PASSES
from strategies.levels.planning import Level
from strategies.levels.submodels import Submodels
from strategies.rounds.tally import Tally
from training.fitting import passed


def check_examples(trained: Trained, client: Client) -> None:
    """Refuse a reply that claims examples which its client does not have."""
    if not 1 <= trained.examples <= client.profile.examples:
        raise RefusedUpdateError(
            "examples",
            f"{trained.examples} claimed, but client {client.number} has {client.profile.examples}",
        )


DIVERGED = "numbers that are not finite mostly come of too high a rate: lower train.lr"
"""What may help where networks diverge."""

Counted = Callable[[Update, Trained], Update]
"""Returns the part of an update that counts, by what its client reports."""

TrainingMacs = Callable[[Level], int]
"""Returns the MACs of a forward pass of one example in a level's training."""


class Fold:
    """Folds one round's replies into its aggregator."""

    def __init__(
        self,
        federation: Federation,
        aggregator: Aggregator,
        submodels: Submodels,
        start: State,
        tally: Tally,
        counted: Counted,
        training_macs: TrainingMacs,
        train: TrainSettings,
    ) -> None:
        self.federation, self.aggregator, self.tally = federation, aggregator, tally
        self.submodels, self.start = submodels, start
        """The global state that this round's slices were cut from."""
        self.counted, self.training_macs, self.train = counted, training_macs, train
        self.unanswered: set[int] = set()
        """Clients that did not answer."""
        self.losses: list[tuple[int, float]] = []
        """Of the clients whose replies were taken."""

    def add(self, reply: Reply[Assignment]) -> None:
        """Take a reply, or count why it is of no use."""
        client = reply.to.client.number
        self.tally.done += 1
        if reply.message is None:
            reason = reply.failure or "failed"
            if reply.refused:
                self.tally.refuse(client, reason, reply.detail)
            else:
                self.unanswered.add(client)
                self.tally.fail(client, reason, reply.detail)
            return
        try:
            self.losses.append((client, self._accept(reply.to, reply.message).loss))
        except RefusedUpdateError as refusal:
            self.tally.refuse(client, refusal.reason, str(refusal))

    def result(self, round: int) -> dict[str, Tensor]:
        """Return the new global state, if enough clients gave a usable reply."""
        self.tally.accepted = len(self.losses)
        self.tally.loss = sum(loss for _, loss in sorted(self.losses))
        self._require_enough(round)
        return self.aggregator.result(self.start)

    def _accept(self, assigned: Assignment, message: Message) -> Trained:
        submodel, content = self.submodels.of(assigned.cut), message.content
        client = assigned.client
        self.tally.slices[assigned.level].up += size_of(content)
        try:
            trained, state = Trained.read(content), read_slice(content, submodel.form)
        except ProtocolError as error:
            raise RefusedUpdateError(error.reason, str(error)) from None
        check_examples(trained, client)
        if not math.isfinite(trained.loss):
            raise RefusedUpdateError("non-finite", f"the loss is {trained.loss}")
        update = Update(
            state,
            submodel.map,
            self._weight(assigned, trained),
            client.number,
            assigned.cut.level.slice,
            assigned.level,
            self.start,
        )
        self.federation.max_update.check(update, self.start)
        self.aggregator.add(self.counted(update, trained))
        self.tally.accept(client.number, assigned.level, trained, self._macs(assigned, trained))
        if assigned.personal and trained.personal is not None:
            place = (client.number, assigned.turn)
            self.tally.personal[place] = assigned.level, trained.personal
        return trained

    def _macs(self, assigned: Assignment, trained: Trained) -> int:
        """Return the multiply-accumulates of a client's training."""
        passes = TRAINING_PASSES * passed(trained.examples, self.train)
        return passes * self.training_macs(assigned.cut.level)

    def _weight(self, assigned: Assignment, trained: Trained) -> float:
        if assigned.weight is not None:
            return assigned.weight
        return trained.examples if self.federation.weighting == "examples" else 1

    def _require_enough(self, round: int) -> None:
        needed = self.federation.needed(self.tally.sampled)
        if self.tally.accepted < needed:
            reasons = {**self.tally.failed, **self.tally.refused}
            described = "; ".join(
                f"{count} {reason} ({self.tally.details.get(reason) or 'no detail'})"
                for reason, count in reasons.items()
            )
            diverged = "non-finite" in self.tally.refused
            raise FederationError(
                f"round {round}: {self.tally.accepted} of {self.tally.sampled} clients gave a "
                f"usable reply, {needed} are needed: {described}"
                + (f"; {DIVERGED}" if diverged else "")
            )
