"""ZiCo's score, and the search for the architecture that has the best."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from data.clients import client_data
from data.spec import DatasetSpec
from models import Slice, Task
from models.candidates import Candidates
from strategies.methods.choosing.architecture_search import (
    best_of,
    score_of,
    zico_score,
    zico_scorer,
)

THREE_STAGES = Candidates(((2, 3),) * 3, ((0.5, 0.75, 1.0),) * 3)


def gradients(*batches: list[float]) -> list[torch.Tensor]:
    return [torch.tensor(batch) for batch in batches]


def test_the_score_worked_out_by_hand() -> None:
    # Means 2, 2 and deviations 1, 2: ratios 2 and 1; the third weight does not vary.
    first = gradients([1, 2, 3], [3, -2, 3])
    second = gradients([0.5], [1.5])  # mean 1, deviation 0.5
    assert score_of([first]) == pytest.approx(math.log(3))
    assert score_of([first, second]) == pytest.approx(1.791759, abs=1e-6)


def test_scaling_all_gradients_changes_nothing() -> None:
    layer = gradients([1, 2, 3], [3, -2, 3])
    assert score_of([[7 * each for each in layer]]) == pytest.approx(score_of([layer]))


def test_a_layer_that_does_not_vary_adds_nothing() -> None:
    assert score_of([gradients([1, 2], [1, 2])]) == 0
    assert score_of([gradients([1, 2])]) == 0  # one batch


def test_a_network_is_scored_by_the_weights_of_its_layers_and_is_left_as_it_was() -> None:
    task = Task("preresnet-micro", 10, 1, 28)
    net = task.build(Slice())
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    chance = torch.Generator().manual_seed(0)
    batches = [
        (torch.randn(8, 1, 28, 28, generator=chance), torch.arange(8)),
        (torch.randn(8, 1, 28, 28, generator=chance), torch.arange(8)),
    ]
    # Of two batches every ratio is (|a| + |b|) / |a - b|, at least 1.
    layers = [m.weight for m in net.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)]
    least = sum(math.log(0.5 * weight.numel()) for weight in layers)
    assert zico_score(net, batches) > least
    assert all(torch.equal(before[name], t) for name, t in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())


def scorer(examples: int, batches: int = 2, batch_size: int = 8):  # type: ignore[no-untyped-def]
    data = client_data(DatasetSpec(max_train=examples, clients=1, validation=0, test=0), 0).train
    task = Task("preresnet-micro", 10, 1, 8)
    return zico_scorer(task, data, batches, batch_size, seed=3, device="cpu")


def test_a_score_is_a_function_of_the_seed_and_the_data() -> None:
    small = Slice(0.5)
    one, other = scorer(40), scorer(40)
    assert one is not None
    assert other is not None
    torch.manual_seed(5)
    first = one(small)
    assert first == one(small) == other(small)
    assert first < one(Slice())  # of two batches the larger network has the higher score


def test_a_small_data_set_is_parted_and_one_too_small_is_not_scored() -> None:
    assert scorer(4, batches=2, batch_size=100) is not None
    assert scorer(3, batches=2, batch_size=100) is None


def test_all_candidates_are_scored_where_they_are_few() -> None:
    seen: list[Slice] = []

    def score(candidate: Slice) -> float:
        seen.append(candidate)
        return -len(seen)

    few = Candidates(((2, 3),), ((0.5, 1.0),))
    found = best_of(few, score, lambda each: True, 4, np.random.default_rng(0))
    assert set(seen) == set(few)
    assert found == seen[0]


def test_what_costs_too_much_is_never_scored() -> None:
    def affords(candidate: Slice) -> bool:
        assert candidate.blocks is not None
        return sum(map(len, candidate.blocks)) <= 7

    def score(candidate: Slice) -> float:
        assert affords(candidate)
        return sum(map(len, candidate.blocks or ())) + sum(candidate.width)  # type: ignore[arg-type]

    found = best_of(THREE_STAGES, score, affords, 60, np.random.default_rng(0))
    assert affords(found)
    assert score(found) == 7 + 3
    nothing = best_of(THREE_STAGES, score, lambda _: False, 60, np.random.default_rng(0))
    assert nothing == THREE_STAGES.smallest


def test_the_evolution_scores_so_many_and_comes_closer_than_drawing() -> None:
    many = Candidates(((2, 3, 4, 5),) * 4, ((0.7, 0.8, 0.9, 1.0),) * 4)
    goal = ((0, 1, 2), (0, 1, 2, 3), (0, 1), (0, 1, 2, 3, 4))
    scored: list[Slice] = []

    def score(candidate: Slice) -> float:
        scored.append(candidate)
        assert isinstance(candidate.width, tuple)
        blocks = sum(
            own == wanted for own, wanted in zip(candidate.blocks or (), goal, strict=True)
        )
        return blocks + sum(width == 0.8 for width in candidate.width)

    found = best_of(many, score, lambda _: True, 200, np.random.default_rng(1))
    assert len(scored) == len(set(scored)) == 200
    again = best_of(many, score, lambda _: True, 200, np.random.default_rng(1))
    assert found == again
    assert score(found) >= 7  # of 8; the best of 200 drawn ones has about 5
