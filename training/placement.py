"""Where a network computes, and in what formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.families import SlicedNetwork
from protocol.train_settings import TrainSettings
from training.devices import choose_device, choose_precision

ONEDNN_BLOCK = 16
"""Channels that oneDNN computes at once with AVX-512 (8 with AVX2)."""


@dataclass(frozen=True)
class Placement:
    """The device, the number format and the layout that settings come to for a network here."""

    device: torch.device
    precision: torch.dtype
    layout: torch.memory_format

    @classmethod
    def of(cls, settings: TrainSettings, net: nn.Module) -> Placement:
        device = choose_device(settings.device)
        layout = torch.channels_last if _channels_last(settings, device, net) else None
        precision = choose_precision(settings.precision, device)
        return cls(device, precision, layout or torch.contiguous_format)

    def logits(self, net: Callable[[Tensor], list[Tensor]], inputs: Tensor) -> list[Tensor]:
        """Return what the network answers at each exit, in float32.

        Only the images are laid out anew: convolutions follow their input (measured: as fast as
        with weights laid out too), and weights that keep their layout are sent as they are.
        """
        if inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=self.layout)
        mixed = self.precision != torch.float32
        with torch.autocast(self.device.type, self.precision, enabled=mixed):
            answers = net(inputs)
        return [answer.float() for answer in answers]


@dataclass(frozen=True)
class PlacedNetwork:
    """A network and where it computes: called with inputs, it returns the logits of each exit."""

    module: SlicedNetwork
    place: Placement
    run: Callable[[Tensor], list[Tensor]]
    """Computes the logits: the module, or what it was compiled to."""

    def __call__(self, inputs: Tensor) -> list[Tensor]:
        return self.place.logits(self.run, inputs)


def _channels_last(settings: TrainSettings, device: torch.device, net: nn.Module) -> bool:
    """Return whether it helps: on CUDA, and on CPU (1.1 to 1.25 times as fast) where it is safe."""
    unsafe = device.type == "cpu" and any(map(_overruns_channels_last, net.modules()))
    if settings.channels_last == "on" and unsafe:
        raise ValueError(
            "channels_last is 'on': expected 'auto' or 'off', because oneDNN corrupts memory with "
            "this slice's strided 1x1 convolution of few channels (oneDNN issue 6035)"
        )
    if settings.channels_last == "auto":
        return device.type == "cuda" or (device.type == "cpu" and not unsafe)
    return settings.channels_last == "on"


def _overruns_channels_last(module: nn.Module) -> bool:
    """Return whether its backward pass on CPU writes past a buffer (3 to 7 channels crashed).

    github.com/uxlfoundation/oneDNN/issues/6035: fewer input channels than oneDNN's block.
    """
    return (
        isinstance(module, nn.Conv2d)
        and max(module.kernel_size) == 1
        and max(module.stride) > 1
        and module.in_channels // module.groups < ONEDNN_BLOCK
    )
