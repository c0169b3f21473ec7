"""Random crops and mirror images, drawn for each sample, on whole batches of pixels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def augment(images: Tensor, padding: int, flip: bool, generator: torch.Generator) -> Tensor:
    """Crop each image from itself padded with zeros, and mirror it with probability 1/2."""
    batch, device = len(images), images.device
    if padding:
        corners = torch.randint(0, 2 * padding + 1, (2, batch), generator=generator)
        top, left = corners.to(device)
        images = crop(F.pad(images, (padding,) * 4), top, left, images.shape[-1])
    if flip:
        mirrored = torch.randint(0, 2, (batch,), generator=generator).to(device)
        images = mirror(images, mirrored.bool())
    return images


def crop(images: Tensor, top: Tensor, left: Tensor, size: int) -> Tensor:
    """Cut the square of `size` pixels of each image that begins at its own (top, left)."""
    batch, channels, height, width = images.shape
    lines = torch.arange(size, device=images.device)
    planes = torch.arange(batch * channels, device=images.device).view(batch, channels, 1)
    corners = (top * width + left).view(batch, 1, 1)
    starts = planes * (height * width) + corners + lines * width
    # Each line of a crop is a run of neighbours in memory, so copying runs is all there is to do.
    runs = images.flatten().unfold(0, size, 1)
    return runs.index_select(0, starts.flatten()).view(batch, channels, size, size)


def mirror(images: Tensor, mirrored: Tensor) -> Tensor:
    """Exchange left and right of the images that `mirrored` chooses."""
    return torch.where(mirrored.view(-1, 1, 1, 1), images.flip(-1), images)
