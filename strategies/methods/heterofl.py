"""HeteroFL (Diao, Ding, Tarokh: "HeteroFL", ICLR 2021): levels of width, and a masked loss.

- Levels keep the first channels of each layer (section 3, "hidden channel shrinkage").
- Static batch norm ("sBN"): training normalises by the batch and keeps no statistics; before a
  test all clients gather them once, and the server averages those (`strategies/rounds/
  norm_statistics.py`, for any method whose networks have such norms).
- A scaler after each layer divides by the level's width while training ("Scaler").
- The logits of classes that a client does not have are 0 in its loss ("masking trick").
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from models.families import SlicedNetwork
from strategies.base import NestedStrategy
from strategies.method_settings import PlannedSettings
from training.local_training import LocalTraining
from training.placement import PlacedNetwork
from training.shared_losses import masked_cross_entropy, present_classes


@dataclass(frozen=True, kw_only=True)
class HeteroFLSettings(PlannedSettings):
    """HeteroFL's settings; the paper's widths are 1/16 to 1."""

    name: str = "heterofl"
    norm: str | None = "bn-static"
    scaler: str | None = "train"
    masked_loss: bool = True
    """Whether the logits of classes that a client does not have are 0 in its loss."""


class HeteroFLTraining(LocalTraining):
    """The client half: cross-entropy over the classes that the client has."""

    settings: HeteroFLSettings

    def begin(self, network: SlicedNetwork) -> None:
        """Look which classes this client has."""
        self.present = present_classes(self.data.labels, self.work.task.num_classes)

    def loss(self, network: PlacedNetwork, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the masked cross-entropy of a batch."""
        if not self.settings.masked_loss:
            return super().loss(network, inputs, labels)
        return masked_cross_entropy(network(inputs), labels, self.present)


class HeteroFL(NestedStrategy):
    """The server half: widths, and the nested mean of what overlaps, are the base's own."""

    Settings = HeteroFLSettings
    Training = HeteroFLTraining
