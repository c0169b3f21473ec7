"""The client half of a method: what a client minimises, what it sends back, what it remembers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from data.examples import Examples
from models.families import SlicedNetwork
from models.slicing import State
from protocol.records import Work
from training.placement import PlacedNetwork
from training.shared_losses import cross_entropy


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
