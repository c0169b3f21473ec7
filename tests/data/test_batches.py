"""Batches: every image once with its label, normalised, and augmented by the seed alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.catalog import IMAGES
from data.examples import ImageData, ImageSplit, augment, crop, mirror
from tests.support.image_files import FACTS, random_split


def as_data(split: ImageSplit, name: str = "cifar10") -> ImageData:
    return ImageData.of(split, IMAGES[name])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_batches_in_order_are_the_normalised_images() -> None:
    split = random_split(25)
    batches = list(as_data(split).batches(10))
    assert [len(labels) for _, labels in batches] == [10, 10, 5]
    images = torch.cat([images for images, _ in batches])
    mean, std = (torch.tensor(x).view(1, 3, 1, 1) for x in (FACTS.mean, FACTS.std))
    torch.testing.assert_close(images, (torch.from_numpy(split.images) / 255 - mean) / std)
    assert images.dtype == torch.float32
    labels = torch.cat([labels for _, labels in batches])
    assert labels.dtype == torch.int64
    assert labels.tolist() == split.labels.tolist()


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 40), batch_size=st.integers(1, 50), seed=st.integers(0, 2**32))
def test_a_shuffled_pass_shows_every_image_once_with_its_label(
    rows: int, batch_size: int, seed: int
) -> None:
    images = np.arange(rows, dtype=np.uint8)[:, None, None, None] * np.ones((1, 8, 8), np.uint8)
    digits = as_data(ImageSplit(images, np.arange(rows) % 10), "digits")
    batches = list(digits.batches(batch_size, shuffle=True, generator=seeded(seed)))
    (mean,), (std,) = digits.facts.mean, digits.facts.std
    seen = [
        (round(((image[0, 0, 0] * std + mean) * 255).item()), label.item())
        for batch in batches
        for image, label in zip(*batch, strict=True)
    ]
    assert sorted(seen) == [(row, row % 10) for row in range(rows)]


def test_the_generator_alone_decides_order_and_augmentation() -> None:
    cifar = as_data(random_split(32))

    def one_pass(seed: int) -> torch.Tensor:
        passes = cifar.batches(8, shuffle=True, augment=True, generator=seeded(seed))
        return torch.cat([images for images, _ in passes])

    assert torch.equal(one_pass(0), one_pass(0))
    assert not torch.equal(one_pass(0), one_pass(1))
    assert one_pass(0).shape == (32, 3, 32, 32)


def test_digits_are_shifted_by_at_most_a_pixel_and_never_mirrored() -> None:
    digits = as_data(random_split(10, "digits"), "digits")
    ((plain, _),) = digits.batches(10)
    ((augmented, _),) = digits.batches(10, augment=True, generator=seeded())
    for before, after in zip(plain, augmented, strict=True):
        middle = after[:, 1:-1, 1:-1]
        assert any(torch.equal(middle, before[:, y : y + 6, x : x + 6])
                   for y in range(3) for x in range(3))  # fmt: skip


def test_chance_without_a_generator_and_empty_batches_are_refused() -> None:
    digits = as_data(random_split(10, "digits"), "digits")
    with pytest.raises(ValueError, match="need a generator"):
        digits.batches(4, shuffle=True)
    with pytest.raises(ValueError, match="batch_size is 0"):
        digits.batches(0)


def test_an_empty_part_has_no_batches() -> None:
    assert list(as_data(random_split(0)).batches(4, shuffle=True, generator=seeded())) == []


def test_crop_takes_each_images_own_window() -> None:
    images = torch.arange(2 * 2 * 4 * 4, dtype=torch.uint8).view(2, 2, 4, 4)
    cropped = crop(images, torch.tensor([0, 2]), torch.tensor([1, 2]), 2)
    assert cropped[0].tolist() == [[[1, 2], [5, 6]], [[17, 18], [21, 22]]]
    assert torch.equal(cropped[1], images[1, :, 2:, 2:])


def test_mirror_turns_only_the_chosen_images() -> None:
    images = torch.tensor([[1, 2, 3], [1, 2, 3]]).view(2, 1, 1, 3)
    turned = mirror(images, torch.tensor([False, True]))
    assert turned.flatten(1).tolist() == [[1, 2, 3], [3, 2, 1]]


def test_augmentation_shifts_by_at_most_the_padding_and_flips_half() -> None:
    image = torch.zeros(1, 1, 9, 9, dtype=torch.uint8)
    image[0, 0, 4, 4:6] = torch.tensor([100, 200], dtype=torch.uint8)
    seen = augment(image.expand(2000, 1, 9, 9), 3, True, seeded())[:, 0]
    (_, rows, columns) = (seen == 100).nonzero(as_tuple=True)
    assert len(rows) == 2000
    assert set(rows.tolist()) == set(range(1, 8)) == set(columns.tolist())
    flipped = (seen.argmax(-1).amax(-1) < columns).float().mean()
    assert 0.45 < flipped < 0.55
    assert seen.dtype == torch.uint8
