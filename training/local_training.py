"""The client half of a method: its loss, its reply, and its memory between rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import RecordDict
from torch import Tensor

from data.examples import Examples
from models.families import SlicedNetwork
from models.slicing import State
from protocol.work import Work
from training.devices import PlacedNetwork
from training.shared_losses import cross_entropy, masked, masked_cross_entropy, present_classes


def plain_loss(network: PlacedNetwork, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of the network's last exit."""
    return cross_entropy(network(inputs), labels)


class LocalTraining:
    """Trains a slice by plain cross-entropy; a method overrides the parts that differ.

    One object is made for each message, for the time of the client's work on it.
    """

    def __init__(self, settings: Any, work: Work, data: Examples, memory: State) -> None:
        self.settings = settings
        """The method's settings, equal to the server's."""
        self.work, self.data = work, data
        self.memory: Mapping[str, Tensor] = memory
        """The client's memory; empty in its first round, or if it was lost. Its value after
        training is kept for the client's next round, if the settings' `remembers` is true."""
        self.classes: tuple[int, ...] | None = None
        """The classes of the client's examples, if the method reports them to the server."""

    @property
    def told(self) -> Mapping[str, Any]:
        """Values from the server for this client in this round."""
        return self.work.told

    def answer(self, network: SlicedNetwork | None) -> RecordDict:
        """Answer a question of the method's server half, about the network if it sends one."""
        raise NotImplementedError(f"{self.work.method} asks its clients no question")

    def begin(self, network: SlicedNetwork) -> None:
        """Inspect the network before its first step."""

    def moved(self, network: SlicedNetwork) -> Sequence[Tensor]:
        """Return the tensors, or views of them, that a step moves where they have gradients.

        They share the network's memory.
        """
        return list(network.parameters())

    def loss(self, network: PlacedNetwork, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch; `network(inputs)` returns the logits of each exit."""
        return plain_loss(network, inputs, labels)

    def answers(self, logits: list[Tensor]) -> list[Tensor]:
        """Return the logits that the client's own test counts, as its loss does."""
        return logits

    def reply(self, network: SlicedNetwork) -> State:
        """Return the tensors of the reply: the slice's, under their names and in their order."""
        return network.state_dict()


class MaskedTraining(LocalTraining):
    """Cross-entropy over the client's own classes, if the settings' `masked_loss` is on.

    The logits of other classes are 0, so that a client does not unlearn classes it has no example
    of.
    """

    def begin(self, network: SlicedNetwork) -> None:
        """Find the client's classes."""
        self.present = present_classes(self.data.labels, self.work.task.num_classes)

    def loss(self, network: PlacedNetwork, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the masked cross-entropy of a batch."""
        if not self.settings.masked_loss:
            return super().loss(network, inputs, labels)
        return masked_cross_entropy(network(inputs), labels, self.present)

    def answers(self, logits: list[Tensor]) -> list[Tensor]:
        """Return the logits of the loss: 0 for classes that the client does not have."""
        if not self.settings.masked_loss:
            return logits
        return [masked(each, self.present) for each in logits]
