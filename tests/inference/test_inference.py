"""Early exits: confident samples leave and are not computed further, and a budget is kept."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from inference import (
    BudgetError,
    RunningEnsemble,
    WholeEnsemble,
    anytime,
    cheapest_thresholds,
    classify,
    exit_shares,
    exits_taken,
    fit_thresholds,
    freeze,
    milliseconds,
    needs_statistics,
    only_last_exit,
    scores,
)
from models import Slice, build
from models.families import SlicedNetwork, Walk, going_on
from models.task import Task
from strategies.levels.cost import cost, macs_by_exit
from tests.support.toy_networks import randomised

EXITS = (3, 6, 9)


class Given(SlicedNetwork):
    """Answers with the logits that are its input, [n, exits, classes]; sees who comes by."""

    def __init__(self) -> None:
        super().__init__()
        self.exits = nn.ModuleDict()
        self.passed: list[int] = []

    def walk(self, x: Tensor) -> Walk:
        for number in range(x.shape[1]):
            self.passed.append(len(x))
            x = going_on(x, (yield x[:, number]))


def logits(confidence: float, chosen: int) -> list[float]:
    """Logits of two classes whose softmax gives `chosen` this confidence."""
    sure = math.log(confidence / (1 - confidence))
    return [sure, 0.0] if chosen == 0 else [0.0, sure]


SAMPLES = torch.tensor(
    [
        [logits(0.6, 0), logits(0.7, 0), logits(0.8, 1)],
        [logits(0.9, 1), logits(0.6, 0), logits(0.6, 0)],
        [logits(0.6, 1), logits(0.9, 0), logits(0.6, 1)],
        [logits(0.95, 0), logits(0.6, 1), logits(0.6, 1)],
    ]
)


@pytest.fixture
def net() -> SlicedNetwork:
    """Three exits, with statistics of its own in every norm."""
    torch.manual_seed(0)
    built = build("resnet20", 10, slice=Slice(exits=EXITS), norm="bn-static")
    randomised(built)
    return freeze(built, [torch.randn(32, 3, 16, 16) for _ in range(2)])


# --- leaving ---------------------------------------------------------------------------------


def test_who_is_sure_leaves_and_answers_keep_the_order_of_the_inputs() -> None:
    net = Given()
    answers = classify(net, SAMPLES, [0.85, 0.85])
    assert answers.exits.tolist() == [2, 0, 1, 0]
    assert answers.classes.tolist() == [1, 1, 0, 0]
    assert answers.confidence.tolist() == pytest.approx([0.8, 0.9, 0.9, 0.95])
    assert net.passed == [4, 2, 1]


def test_an_ensemble_answers_at_each_exit_with_the_mean_of_those_so_far() -> None:
    means = [SAMPLES[:, : count + 1].mean(1) for count in range(3)]
    for found, mean in zip(RunningEnsemble(Given())(SAMPLES), means, strict=True):
        torch.testing.assert_close(found, mean)
    (whole,) = WholeEnsemble(Given())(SAMPLES)
    torch.testing.assert_close(whole, means[-1])


def test_who_leaves_an_ensemble_takes_its_logits_along() -> None:
    """Two leave at the first exit; the others' means are of their own logits."""
    net = Given()
    answers = classify(RunningEnsemble(net), SAMPLES, [0.85, 0.99])
    assert answers.exits.tolist() == [2, 0, 2, 0]
    staying = SAMPLES[[0, 2]].mean(1).softmax(1).max(1)
    assert answers.classes[[0, 2]].tolist() == staying.indices.tolist()
    torch.testing.assert_close(answers.confidence[[0, 2]], staying.values)
    assert net.passed == [4, 2, 2]


def test_the_walk_ends_when_nobody_is_left() -> None:
    net = Given()
    assert classify(net, SAMPLES, [0.5, 0.9]).exits.tolist() == [0, 0, 0, 0]
    assert net.passed == [4]


def test_a_threshold_that_nobody_reaches_sends_all_to_the_end() -> None:
    answers = classify(Given(), SAMPLES, [math.inf, math.inf])
    assert answers.exits.tolist() == [2, 2, 2, 2]
    assert answers.classes.tolist() == [1, 0, 1, 1]


def test_too_many_thresholds_are_refused() -> None:
    with pytest.raises(ValueError, match="3 thresholds, but the network has 3 exits"):
        classify(Given(), SAMPLES, [math.inf] * 3)


def test_who_has_left_is_not_computed(net: SlicedNetwork) -> None:
    x = torch.randn(24, 3, 16, 16)
    confidence = scores(net, [x])
    thresholds = [float(row.median()) for row in confidence[:-1]]
    seen: dict[str, int] = {}
    for name, module in net.named_modules():
        if name in ("layer1.0", "layer2.0", "layer3.0", "exits.6", "linear"):

            def note(_: nn.Module, args: tuple[Tensor], name: str = name) -> None:
                seen[name] = len(args[0])

            module.register_forward_pre_hook(note)
    taken = classify(net, x, thresholds).exits
    reached = [int((taken >= number).sum()) for number in range(3)]
    assert reached[0] > reached[1] > reached[2] > 0
    assert seen == {
        "layer1.0": 24,
        "layer2.0": reached[1],
        "exits.6": reached[1],
        "layer3.0": reached[2],
        "linear": reached[2],
    }


def test_early_answers_are_those_of_the_whole_pass(net: SlicedNetwork) -> None:
    x = torch.randn(40, 3, 16, 16)
    with torch.inference_mode():
        whole = torch.stack(net(x)).softmax(-1)
    thresholds = [float(row.median()) for row in whole.amax(-1)[:-1]]
    answers = classify(net, x, thresholds)
    assert torch.equal(answers.exits, exits_taken(whole.amax(-1), thresholds))
    own = whole[answers.exits, torch.arange(40)]
    assert torch.equal(answers.classes, own.argmax(-1))
    torch.testing.assert_close(answers.confidence, own.amax(-1))


@pytest.mark.parametrize("count", [0, 1])
def test_a_batch_may_be_empty_or_a_single_sample(net: SlicedNetwork, count: int) -> None:
    answers = classify(net, torch.randn(count, 3, 16, 16), [2.0, 0.0])
    assert answers.exits.tolist() == [1] * count
    assert len(answers.classes) == len(answers.confidence) == count


# --- anytime ---------------------------------------------------------------------------------


def test_anytime_computes_no_exit_before_it_is_asked_for() -> None:
    net = Given()
    answers = anytime(net, SAMPLES)
    assert net.passed == []
    first = next(answers)
    assert (first.classes.tolist(), first.exits.tolist()) == ([0, 1, 1, 0], [0, 0, 0, 0])
    assert net.passed == [4]
    assert torch.is_grad_enabled()  # between answers the caller's mode is his own
    assert [answer.exits[0].item() for answer in answers] == [1, 2]


# --- thresholds ------------------------------------------------------------------------------


def test_shares_are_geometric_and_cost_the_budget() -> None:
    # r = 1/2 gives 4/7, 2/7, 1/7; the average cost of 1, 2, 4 is then 12/7.
    assert exit_shares([1, 2, 4], 12 / 7) == pytest.approx([4 / 7, 2 / 7, 1 / 7])
    assert exit_shares([1, 2, 3], 2) == pytest.approx([1 / 3, 1 / 3, 1 / 3])
    assert exit_shares([1, 2, 4], 1) == pytest.approx([1, 0, 0])
    assert exit_shares([1, 2, 4], 4) == exit_shares([1, 2, 4], 9) == [0, 0, 1]
    assert exit_shares([3], 3) == [1]


def test_thresholds_worked_out_by_hand() -> None:
    confidence = torch.tensor(
        [[0.9, 0.5, 0.7, 0.6, 0.8, 0.4], [0.9, 0.8, 0.7, 0.6, 0.9, 0.5], [0.9] * 6]
    )
    # A third each: samples 0 and 4 leave first (0.8), then of the others 1 and 2 (0.7).
    thresholds = fit_thresholds(confidence, [1, 2, 3], 2)
    assert thresholds == pytest.approx([0.8, 0.7])
    assert exits_taken(confidence, thresholds).tolist() == [0, 1, 1, 2, 0, 2]


def test_equally_sure_samples_leave_together_and_the_next_exit_makes_up_for_it() -> None:
    confidence = torch.tensor([[0.9, 0.9, 0.9, 0.1, 0.2, 0.3], [0.5] * 6, [0.5] * 6])
    thresholds = fit_thresholds(confidence, [1, 2, 3], 2)  # 2 are due, 3 leave; then 1, all leave
    assert thresholds == pytest.approx([0.9, 0.5])


def test_where_all_are_to_leave_later_samples_leave_too() -> None:
    thresholds = fit_thresholds(torch.tensor([[0.5, 0.4], [0.6, 0.6], [0.7, 0.7]]), [1, 2, 3], 1)
    assert thresholds == pytest.approx([0.4, 0.0])
    assert exits_taken(torch.tensor([[0.3], [0.1], [0.9]]), thresholds).tolist() == [1]


@given(st.integers(1, 60), st.integers(2, 5), st.floats(0, 1), st.integers(0, 2**16))
def test_a_budget_is_met_within_one_sample(n: int, exits: int, place: float, seed: int) -> None:
    chance = torch.Generator().manual_seed(seed)
    confidence = torch.rand(exits, n, generator=chance, dtype=torch.float64)
    costs = torch.rand(exits, generator=chance, dtype=torch.float64).add(0.1).cumsum(0)
    budget = float(costs[0] + place * (costs[-1] - costs[0]))
    thresholds = fit_thresholds(confidence, costs.tolist(), budget)
    spent = float(costs[exits_taken(confidence, thresholds)].mean())
    assert budget - float(costs[-1] - costs[0]) / n - 1e-6 <= spent <= budget + 1e-6


def test_a_budget_below_the_first_exit_says_so() -> None:
    with pytest.raises(BudgetError, match=r"0\.5 is below 1, the cost of the first exit"):
        exit_shares([1, 2], 0.5)
    with pytest.raises(ValueError, match="no samples to fit thresholds on"):
        scores(Given(), [])


def test_the_cheapest_thresholds_lose_no_more_than_they_may() -> None:
    confidence = torch.tensor([[0.9, 0.8, 0.7, 0.6], [0.9, 0.9, 0.9, 0.9]])
    hits = torch.tensor([[True, True, False, False], [True, True, True, True]])
    # All at the first exit lose half; three of four lose a quarter; two lose nothing.
    assert cheapest_thresholds(confidence, hits, [1, 2], 0.5) == pytest.approx([0.6])
    assert cheapest_thresholds(confidence, hits, [1, 2], 0.25) == pytest.approx([0.7])
    assert cheapest_thresholds(confidence, hits, [1, 2], 0.0) == pytest.approx([0.8])
    # Where the surest sample is wrong, nobody may leave early.
    assert cheapest_thresholds(confidence, ~hits, [1, 2], 0.0) == pytest.approx([0.6])
    wrong_when_sure = torch.tensor([[False, True, True, True], [True, True, True, True]])
    assert cheapest_thresholds(confidence, wrong_when_sure, [1, 2], 0.0) == [math.inf]
    # Two or three that leave lose a quarter; that all four would not is luck.
    lucky = torch.tensor([[True, False, True, True], [True, True, True, False]])
    assert cheapest_thresholds(confidence, lucky, [1, 2], 0.0) == pytest.approx([0.9])


def test_budgets_are_tried_in_hundredths_of_the_way() -> None:
    confidence = torch.stack((torch.linspace(0.99, 0.01, 303), torch.ones(303)))
    hits = torch.ones(2, 303, dtype=torch.bool)
    hits[0, 4:] = False
    # A hundredth of 303 samples are the four surest, which are right; two are seven.
    thresholds = cheapest_thresholds(confidence, hits, [1, 2], 0.0)
    assert thresholds == pytest.approx([float(confidence[0, 3])])


# --- costs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["conv", "pool"])
def test_stopping_at_an_exit_costs_what_a_network_that_ends_there_does(head: str) -> None:
    task = Task("resnet20", options=(("head", head),))
    counted = macs_by_exit(task, Slice(width=0.5, exits=EXITS))
    for number, macs in enumerate(counted, 1):
        assert macs == cost(task, Slice(width=0.5, exits=EXITS[:number])).macs


def test_time_is_measured_to_each_exit(net: SlicedNetwork) -> None:
    found = milliseconds(net, torch.randn(2, 3, 16, 16), turns=3)
    assert len(found) == 3
    assert 0 < found[0] < found[1] < found[2]


# --- frozen networks -------------------------------------------------------------------------


def batches() -> Iterator[Tensor]:
    chance = torch.Generator().manual_seed(1)
    return (torch.randn(16, 3, 16, 16, generator=chance) * 2 + 1 for _ in range(3))


@pytest.mark.parametrize("norm", ["bn", "bn-static", "bn-running", "gn"])
def test_a_frozen_networks_answer_does_not_depend_on_the_batch(norm: str) -> None:
    net = build("resnet20", 10, slice=Slice(exits=EXITS), norm=norm)
    randomised(net)
    assert needs_statistics(net) == (norm != "gn")
    frozen = freeze(net, batches())
    assert not needs_statistics(frozen)
    assert needs_statistics(net) == (norm != "gn")  # what was given is as it was
    x = next(batches())
    with torch.inference_mode():
        together = frozen(x)
        alone = [torch.cat(parts) for parts in zip(*(frozen(one[None]) for one in x), strict=True)]
        mixed = frozen(torch.cat((x[:4], 9 * torch.ones_like(x))))
    for whole, single, other in zip(together, alone, mixed, strict=True):
        torch.testing.assert_close(whole, single, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(whole[:4], other[:4], rtol=1e-4, atol=1e-4)


def test_on_the_batch_it_was_frozen_on_a_network_answers_as_it_did() -> None:
    net = randomised(build("resnet20", 10, slice=Slice(exits=EXITS), norm="bn")).eval()
    x = next(batches())
    frozen = freeze(net, [x])
    with torch.inference_mode():
        for before, after in zip(net(x), frozen(x), strict=True):
            torch.testing.assert_close(before, after, rtol=0.05, atol=0.05)  # unbiased variance


def test_freezing_on_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no batch to gather"):
        freeze(build("resnet20", 10), [])


@pytest.mark.parametrize("exits", [EXITS, (3, 6)])
def test_the_last_exit_alone_answers_as_before_without_the_other_heads(
    exits: tuple[int, ...],
) -> None:
    net = freeze(build("resnet20", 10, slice=Slice(exits=exits)), batches())
    alone = only_last_exit(net, exits[-1])
    x = next(batches())
    with torch.inference_mode():
        (answer,) = alone(x)
        assert torch.equal(answer, net(x)[-1])
    assert sum(1 for _ in alone.parameters()) < sum(1 for _ in net.parameters())
