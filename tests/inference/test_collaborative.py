"""Serving samples at the nodes' rates: each sample's node, worked out by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inference.topology import PAPERS_SERVING, Node, Topology, serve
from server_app.config.composing import compose


def chain(first: float, second: float) -> Topology:
    return Topology(
        (
            Node("device", 1, ("edge",), arrival=10, max_transfer=first),
            Node("edge", 2, ("cloud",), max_transfer=second),
            Node("cloud", 3),
        )
    )


GRAPH = Topology(
    (
        Node("a", 1, ("c", "d"), shares=(2, 1), arrival=5, max_transfer=3),
        Node("b", 1, ("d",), arrival=3, max_transfer=1),
        Node("c", 2, ("d",), max_transfer=1),
        Node("d", 3, arrival=1),
    )
)
CONFIDENCE = torch.tensor(
    [
        [0.9, 0.1, 0.8, 0.2, 0.7, 0.3, 0.6, 0.4, 0.55, 0.5],
        [0.5, 0.9, 0.5, 0.8, 0.5, 0.7, 0.5, 0.6, 0.5, 0.5],
        [0.5] * 10,
    ]
)


def test_each_node_answers_what_it_is_surest_of() -> None:
    """The device keeps the six surest of ten: 0, 2, 4, 6, 8, 9; the edge of 1, 3, 5, 7 three."""
    right = torch.zeros(3, 10, dtype=torch.bool)
    right[0, [0, 2, 4]] = True  # three of the device's six
    right[1, [1, 3, 7]] = True  # two of the edge's three: 1, 3, 5
    right[2, [7]] = True  # the cloud's one
    served = serve(chain(4, 1), CONFIDENCE, right)
    assert served.answered == {"device": 6, "edge": 3, "cloud": 1}
    assert served.right == 3 + 2 + 1
    assert served.accuracy == 0.6


def test_answers_of_other_exits_do_not_count() -> None:
    right = torch.ones(3, 10, dtype=torch.bool)
    right[0, [0, 2, 4, 6, 8, 9]] = False
    right[1, [1, 3, 5]] = False
    right[2, [7]] = False
    assert serve(chain(4, 1), CONFIDENCE, right).right == 0


def test_a_hundred_samples_on_the_paper_s_tree_are_served_80_15_5() -> None:
    topology = compose("strategy=depthfl fleet=cis_7 fleet.serving=80-15-5").fleet.topology
    assert topology is not None
    confidence = torch.rand(3, 400, generator=torch.Generator().manual_seed(0))
    served = serve(topology, confidence, torch.ones(3, 400, dtype=torch.bool))
    assert list(served.answered.values()) == [80, 80, 80, 80, 30, 30, 20]
    assert served.accuracy == 1


def test_equal_confidences_make_no_difference_to_how_many_are_served() -> None:
    right = torch.ones(3, 10, dtype=torch.bool)
    assert serve(chain(4, 1), torch.full((3, 10), 0.5), right).answered["device"] == 6


@given(seed=st.integers(0, 1000), samples=st.integers(1, 60))
def test_every_sample_is_answered_once_and_the_same_every_time(seed: int, samples: int) -> None:
    chance = torch.Generator().manual_seed(seed)
    confidence = torch.rand(3, samples, generator=chance)
    right = torch.rand(3, samples, generator=chance) < 0.5
    found = [serve(GRAPH, confidence, right, seed) for _ in range(2)]
    assert sum(found[0].answered.values()) == samples
    assert found[0] == found[1]


def test_one_exit_alone_has_its_own_accuracy() -> None:
    right = torch.rand(3, 50, generator=torch.Generator().manual_seed(1)) < 0.5
    confidence = torch.rand(3, 50, generator=torch.Generator().manual_seed(2))
    for place, (first, second) in enumerate([(0, 0), (10, 0), (10, 10)]):
        found = serve(chain(first, second), confidence, right).accuracy
        assert found == pytest.approx(float(right[place].double().mean()))


def test_other_exits_than_the_nodes_have_are_refused() -> None:
    with pytest.raises(ValueError, match="2 exits and 5 samples: expected 3 exits"):
        serve(chain(4, 1), torch.rand(2, 5), torch.ones(2, 5, dtype=torch.bool))


def test_nodes_know_which_of_the_paper_s_settings_fit_them() -> None:
    assert tuple(chain(10, 10).papers_settings()) == PAPERS_SERVING
    two = Topology((Node("a", 1, ("b",), arrival=1), Node("b", 2)))
    assert two.papers_settings() == {}
