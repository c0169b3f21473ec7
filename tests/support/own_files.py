"""Writes small data like users have: photos in folders, tables of texts, and their specs."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from data.look import completed
from data.spec import DatasetSpec

CLASSES = ("cat", "dog", "yak")


def write_photo(
    file: Path, colour: Sequence[int] = (10, 20, 30), size: tuple[int, int] = (8, 8)
) -> Path:
    """Write an image of one colour, grey if it has one number; `size` is width and height."""
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.zeros((size[1], size[0], len(colour)), np.uint8) + np.array(colour, np.uint8)
    Image.fromarray(pixels[..., 0] if len(colour) == 1 else pixels).save(file)
    return file


def write_photos(folder: Path, counts: Mapping[str, int]) -> Path:
    """Write so many images of each class; those of the first class are red, of the second green."""
    for number, (name, count) in enumerate(sorted(counts.items())):
        for row in range(count):
            colour = [row, row, row]
            colour[number % 3] = 200
            write_photo(folder / name / f"{row:02}.png", colour)
    return folder


def write_clients(folder: Path, clients: Mapping[str, Mapping[str, int]]) -> Path:
    """Write a folder for each client, with one for each of its classes."""
    for name, counts in clients.items():
        write_photos(folder / name, counts)
    return folder


def write_csv(file: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    with file.open("w", newline="", encoding="utf-8") as output:
        writer = csv.DictWriter(output, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return file


def reviews(count: int = 30) -> list[dict[str, Any]]:
    """Return texts with 1, 2 or 3 stars, of the users u0 to u4."""
    return [
        {"body": f"word{row} here", "stars": row % 3 + 1, "user": f"u{row % 5}"}
        for row in range(count)
    ]


def photos(path: Path, **settings: Any) -> DatasetSpec:
    """Return a run's spec of images."""
    return completed(DatasetSpec("folder", str(path), **settings))


def table(path: Path, **settings: Any) -> DatasetSpec:
    """Return a run's spec of texts."""
    return completed(
        DatasetSpec("table", str(path), **{"text": "body", "label": "stars"} | settings)
    )
