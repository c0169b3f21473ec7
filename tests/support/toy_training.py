"""Small residual networks and random digits that clients train on in tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from data.catalog import IMAGES
from data.examples import ImageData
from models import Slice, SlicedNetwork, build
from protocol.train_settings import TrainSettings

EPOCH = TrainSettings(epochs=1, batch_size=32, schedule="constant", augment=False, device="cpu")
"""One epoch at a constant rate, of pixels as they are."""
CPU = replace(EPOCH, batch_size=8, lr=0.05)
QUARTER = Slice(width=0.25)
EXITS = Slice(width=0.25, exits=(3, 9))


def digits(count: int, seed: int = 0, classes: int = 10) -> ImageData:
    chance = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 1, 8, 8), generator=chance, dtype=torch.uint8)
    labels = torch.randint(0, classes, (count,), generator=chance)
    return ImageData(images, labels, IMAGES["digits"])


def resnet(slice: Slice = QUARTER, name: str = "resnet20", **options: Any) -> SlicedNetwork:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build(name, 10, 1, slice, **options)
