"""The client half of a method: what a client minimises, what it sends back, what it remembers."""

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
    """Trains a slice by plain cross-entropy; a method overrides what it does differently.

    One is made for each message. It lives as long as the client works on it.
    """

    def __init__(self, settings: Any, work: Work, data: Examples, memory: State) -> None:
        self.settings = settings
        """The method's settings, as the server has them."""
        self.work, self.data = work, data
        self.memory: Mapping[str, Tensor] = memory
        """What this client remembers; empty in its first round, or where it has lost it. What it
        is after the training is kept for the client's next round, if the settings say that
        clients remember."""
        self.classes: tuple[int, ...] | None = None
        """The classes of its examples, if the server is to know them."""

    @property
    def told(self) -> Mapping[str, Any]:
        """What the server tells this client in this round."""
        return self.work.told

    def answer(self, network: SlicedNetwork | None) -> RecordDict:
        """Answer a question of the method's server half, about the network where it sends one."""
        raise NotImplementedError(f"{self.work.method} asks its clients no question")

    def begin(self, network: SlicedNetwork) -> None:
        """Look at the network as it was received, before its first step."""

    def moved(self, network: SlicedNetwork) -> Sequence[Tensor]:
        """Return what a step moves, of those that it has gradients of: tensors, or parts of them.

        They share the network's memory.
        """
        return list(network.parameters())

    def loss(self, network: PlacedNetwork, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return what is minimised for a batch; `network(inputs)` are the logits of each exit."""
        return plain_loss(network, inputs, labels)

    def answers(self, logits: list[Tensor]) -> list[Tensor]:
        """Return the logits as the client's own test counts them: like its loss."""
        return logits

    def reply(self, network: SlicedNetwork) -> State:
        """Return what is sent back: the slice's tensors, under their names and in their order."""
        return network.state_dict()


class MaskedTraining(LocalTraining):
    """Cross-entropy over the classes that the client has, if the settings' `masked_loss` is on.

    The logits of others are 0, so that a client does not unlearn what it has no example of.
    """

    def begin(self, network: SlicedNetwork) -> None:
        """Look which classes this client has."""
        self.present = present_classes(self.data.labels, self.work.task.num_classes)

    def loss(self, network: PlacedNetwork, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the masked cross-entropy of a batch."""
        if not self.settings.masked_loss:
            return super().loss(network, inputs, labels)
        return masked_cross_entropy(network(inputs), labels, self.present)

    def answers(self, logits: list[Tensor]) -> list[Tensor]:
        """Return the logits that the loss counts: 0 for classes that the client does not have."""
        if not self.settings.masked_loss:
            return logits
        return [masked(each, self.present) for each in logits]
