"""What a test on the server tells of single classes: how many of each are right, and else what.

They are counts, so that shares of any kind can be made of them, and added up over runs.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from models.task import Task

MOST_CLASSES = 1000
"""Classes that are told apart: of a vocabulary, nobody would look at them."""
MOST_CONFUSED = 200
"""Classes up to which it is also told for which other each was taken."""


def classes_counted(task: Task) -> bool:
    """Return whether a test of a network tells its classes apart."""
    return not task.tells_words and task.num_classes <= MOST_CLASSES


def level_counts(confusion: Tensor) -> dict[str, Any]:
    """Return a level's counts, of [class, answer]: right answers by class, and where there are not
    too many all of them."""
    whole = {"confusion": confusion.tolist()} if len(confusion) <= MOST_CONFUSED else {}
    return {"right": confusion.diagonal().tolist(), **whole}


def class_sizes(confusion: Tensor) -> list[int]:
    """Return how many examples of each class were tested, which all levels have in common."""
    sizes: list[int] = confusion.sum(1).tolist()
    return sizes
