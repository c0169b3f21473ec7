"""Thresholds by rates, worked out by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inference.rate_thresholds import NEVER, fit_node_thresholds, forwarded_shares
from inference.topology import Node, Topology

SCORES = torch.tensor(
    [
        [0.9, 0.2, 0.7, 0.4, 0.8, 0.3, 0.6, 0.5],  # of exit 1
        [0.9, 0.6, 0.9, 0.5, 0.9, 0.8, 0.9, 0.7],
        [0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9],
    ]
)


def tree(device: float, edge: float) -> Topology:
    return Topology(
        (
            Node("cloud", 3),
            Node("edge", 2, ("cloud",), max_transfer=edge),
            Node("device", 1, ("edge",), arrival=8.0, max_transfer=device),
        )
    )


def test_the_least_sure_go_on_at_each_node_as_many_as_its_rate_says() -> None:
    # Of 8 that arrive 4 go on: those below 0.6. Of these exit 2 is 0.6, 0.5, 0.8 and 0.7 sure,
    # and 1 goes on: the one below 0.6.
    found = fit_node_thresholds(tree(device=4.0, edge=1.0), SCORES)
    assert found == pytest.approx({"cloud": 0.0, "edge": 0.6, "device": 0.6})


def test_who_passes_on_nothing_or_all_has_a_threshold_that_all_or_none_reach() -> None:
    assert fit_node_thresholds(tree(device=0.0, edge=0.0), SCORES)["device"] == 0.0
    assert fit_node_thresholds(tree(device=9.0, edge=0.0), SCORES)["device"] == NEVER


def test_samples_come_to_a_parent_with_the_weights_of_the_children_that_pass_them_on() -> None:
    nodes = (
        Node("much", 1, ("top",), arrival=3.0, max_transfer=1.5),
        Node("little", 2, ("top",), arrival=1.0, max_transfer=0.5),
        Node("top", 3, ("last",), max_transfer=0.5),
        Node("last", 4),
    )
    scores = torch.tensor(
        [
            [0.1, 0.2, 0.8, 0.9],  # much passes on the first two, with 0.75 each
            [0.9, 0.1, 0.2, 0.8],  # little the second and the third, with 0.25 each
            [0.5, 0.6, 0.4, 0.9],
            [0.9, 0.9, 0.9, 0.9],
        ]
    )
    # To the top come the first (0.75), the second (1.0) and the third (0.25), 2.0 in all, of which
    # 0.5 go on. The third alone is 0.25, and with the first 1.0: the third is nearer.
    found = fit_node_thresholds(Topology(nodes), scores)
    assert found == pytest.approx({"much": 0.8, "little": 0.8, "top": 0.5, "last": 0.0})


@pytest.mark.parametrize(
    ("scores", "threshold", "reached"),
    [
        ([0.5] * 9 + [0.9], 0.9, 0.9),  # 90% are nearer to a half than none
        ([0.5] + [0.9] * 9, 0.9, 0.1),  # and 10% nearer than all
        ([1.0] * 10, 1.0, 0.0),  # all or none: as near, so that none go
    ],
)
def test_samples_of_the_same_confidence_go_together(
    scores: list[float], threshold: float, reached: float
) -> None:
    topology = pair(0.5)
    sure = torch.tensor([scores, scores])
    found = fit_node_thresholds(topology, sure)
    assert found["a"] == pytest.approx(threshold)
    assert forwarded_shares(topology, found, sure) == pytest.approx({"a": reached})


def pair(share: float) -> Topology:
    return Topology((Node("a", 1, ("b",), arrival=1.0, max_transfer=share), Node("b", 2)))


@given(
    share=st.floats(0.0, 1.0),
    scores=st.lists(st.sampled_from([0.25, 0.5, 0.75, 1.0]), min_size=1, max_size=20),
)
def test_no_other_threshold_comes_nearer_to_the_rate(share: float, scores: list[float]) -> None:
    sure = torch.tensor([scores, scores])
    threshold = fit_node_thresholds(pair(share), sure)["a"]

    def off(tried: float) -> float:
        return abs(float((sure[0] < tried).double().mean()) - share)

    assert off(threshold) <= min(map(off, (0.25, 0.5, 0.75, 1.0, NEVER))) + 1e-9


@given(
    share=st.floats(0.0, 1.0),
    scores=st.lists(st.floats(0.125, 1.0, width=32), min_size=1, max_size=40, unique=True),
)
def test_as_many_go_on_as_the_rate_says_to_within_half_a_sample(
    share: float, scores: list[float]
) -> None:
    sure = torch.tensor([scores, scores])
    threshold = fit_node_thresholds(pair(share), sure)["a"]
    gone = int((sure[0] < threshold).sum())
    assert abs(gone - share * len(scores)) <= 0.5 + 1e-6
