"""Images in memory, brought to another size and to other channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from data.catalog import DataError, ImageFacts

IMAGES_AT_A_TIME = 1024
BRIGHTNESS = (0.299, 0.587, 0.114)
"""Of red, green and blue in grey (ITU-R 601), as image files are read."""


def fitted(images: Tensor, channels: int, size: int) -> Tensor:
    """Return bytes of images in other channels and of another size: grey, colour, scaled."""
    if images.shape[1] == channels and images.shape[2:] == (size, size):
        return images
    parts = [_fitted(part, channels, size) for part in torch.split(images, IMAGES_AT_A_TIME)]
    return torch.cat(parts) if parts else images.new_empty(0, channels, size, size)


def _fitted(images: Tensor, channels: int, size: int) -> Tensor:
    pixels = images.float()
    if channels == 1 and pixels.shape[1] == 3:
        pixels = (pixels * torch.tensor(BRIGHTNESS).view(1, 3, 1, 1)).sum(1, keepdim=True)
    if pixels.shape[2:] != (size, size):
        scaled = {"size": (size, size), "mode": "bilinear", "antialias": True}
        pixels = F.interpolate(pixels, **scaled)  # type: ignore[arg-type]
    return pixels.round().clamp(0, 255).byte().expand(-1, channels, -1, -1).contiguous()


def fitted_array(images: NDArray[np.uint8], facts: ImageFacts) -> NDArray[np.uint8]:
    """Return images [n, channels, height, width] as a data set has them: their centre, scaled."""
    side = min(images.shape[2:])
    top, left = ((length - side) // 2 for length in images.shape[2:])
    square = np.ascontiguousarray(images[:, :, top : top + side, left : left + side])
    made = fitted(torch.from_numpy(square), facts.in_channels, facts.image_size)
    found: NDArray[np.uint8] = made.numpy()
    return found


def channels_first_of_any(images: NDArray[Any]) -> NDArray[np.uint8]:
    """Return an array of images as [n, channels, height, width], whichever way it has them."""
    if images.dtype != np.uint8:
        raise DataError(f"images of type {images.dtype}: expected uint8, 0 to 255")
    if 0 not in images.shape[1:]:
        if images.ndim == 3:
            return images[:, None]
        if images.ndim == 4 and images.shape[3] in (1, 3):
            return images.transpose(0, 3, 1, 2)
        if images.ndim == 4 and images.shape[1] in (1, 3):
            return images
    raise DataError(
        f"images of shape {images.shape[1:]}: expected height x width, or with 1 or 3 channels "
        "behind or before them"
    )
