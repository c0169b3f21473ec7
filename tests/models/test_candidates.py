"""The architectures that a client may choose from."""

from __future__ import annotations

import numpy as np
import pytest

from models import Slice
from models.candidates import Candidates

TWO = Candidates.of_channels(blocks=((2, 3), (2,)), channels=((6, 8), (12, 16)))


def test_channels_become_shares_of_the_widest() -> None:
    assert TWO.widths == ((0.75, 1.0), (0.75, 1.0))
    assert TWO.smallest == Slice((0.75, 0.75), ((0, 1), (0, 1)))
    assert TWO.largest == Slice((1.0, 1.0), ((0, 1, 2), (0, 1)))


def test_all_candidates_are_counted_and_listed_once() -> None:
    found = list(TWO)
    assert len(TWO) == len(found) == len(set(found)) == 2 * 2 * 2
    assert found[0] == TWO.smallest
    assert found[-1] == TWO.largest


def test_a_kind_leaves_the_rest_at_the_least() -> None:
    assert list(TWO.only("depth")) == [
        Slice((0.75, 0.75), ((0, 1), (0, 1))),
        Slice((0.75, 0.75), ((0, 1, 2), (0, 1))),
    ]
    assert len(TWO.only("width")) == 4
    assert TWO.only("width").largest == Slice((1.0, 1.0), ((0, 1), (0, 1)))
    assert TWO.only("both") == TWO
    with pytest.raises(ValueError, match="unknown kind 'deep'; choose from depth, width, both"):
        TWO.only("deep")


def test_only_what_is_offered_is_found() -> None:
    assert TWO.find((3, 2), (1.0, 0.75)) == Slice((1.0, 0.75), ((0, 1, 2), (0, 1)))
    assert TWO.find((4, 2), (1.0, 0.75)) is None
    assert TWO.find((3, 2), (1.0, 0.8)) is None
    assert TWO.find((3,), (1.0,)) is None
    assert TWO.find((3, 2, 2), (1.0,)) is None
    assert TWO.find((2**50, 2), (1.0, 1.0)) is None  # nothing of that size is made


def test_a_change_is_of_one_number_that_has_a_choice() -> None:
    chance = np.random.default_rng(0)
    for _ in range(50):
        start = TWO.drawn(chance)
        other = TWO.changed(start, chance)
        assert other in set(TWO)
        assert isinstance(start.width, tuple)
        assert isinstance(other.width, tuple)
        assert start.blocks is not None
        assert other.blocks is not None
        changed = [a != b for a, b in zip(start.blocks, other.blocks, strict=True)]
        changed += [a != b for a, b in zip(start.width, other.width, strict=True)]
        assert sum(changed) == 1


def test_what_has_no_choice_stays() -> None:
    only = Candidates(((2,),), ((1.0,),))
    assert only.changed(only.smallest, np.random.default_rng(0)) == only.smallest


@pytest.mark.parametrize(
    ("blocks", "widths", "told"),
    [
        (((2,),), ((1.0,), (1.0,)), "blocks for 1 stages and widths for 2"),
        (((3, 2),), ((1.0,),), r"blocks of stage 1 are \[3, 2\]: expected to rise"),
        (((2,),), ((0.5, 0.5),), r"widths of stage 1 are \[0.5, 0.5\]: expected to rise"),
        (((0, 2),), ((1.0,),), r"blocks of stage 1 are \[0, 2\]: expected to rise from above 0"),
    ],
)
def test_wrong_candidates_say_what_is_wrong(blocks, widths, told) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=told):
        Candidates(blocks, widths)
