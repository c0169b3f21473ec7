"""FedFA's scalable aggregation, with numbers worked out by hand, and as one pass and as two."""

from __future__ import annotations

import itertools
import math
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from models import SliceMap, slice_map
from models.slicing import State
from strategies.aggregation.nested_mean import NestedMean
from strategies.aggregation.update import RefusedUpdateError, Update
from strategies.methods.fedfa.scaled_by_norm import LayerNorm95, Reading, ScaledByNorm

FULL = nn.Linear(3, 2)


def part(rows: int, columns: int) -> SliceMap:
    return slice_map(FULL, nn.Linear(columns, rows))


def update(weight: list[list[float]], bias: list[float], examples: float = 1) -> Update:
    kind = torch.float32
    state = {"weight": torch.tensor(weight, dtype=kind), "bias": torch.tensor(bias, dtype=kind)}
    return Update(state, part(*state["weight"].shape), examples)


def start(value: float = 9.0) -> dict[str, Tensor]:
    return {"weight": torch.full((2, 3), value), "bias": torch.full((2,), value)}


def folded(*updates: Update, norm: LayerNorm95 = LayerNorm95()) -> dict[str, Tensor]:  # noqa: B008
    scaled = ScaledByNorm(NestedMean(), start(), norm)
    for each in updates:
        scaled.add(each)
    return scaled.result(start())


def test_width_only_worked_out_by_hand() -> None:
    # Magnitudes 0, 0, 0, 0, 3, 4: the 95th percentile is 3 + .75 * (4 - 3), so the norm is 3.
    wide = update([[3, 4, 0], [0, 0, 0]], [1, 2])
    narrow = update([[5]], [4])  # norm 5; the mean of the norms is 4
    found = folded(wide, narrow)
    assert found["weight"][0, 0] == pytest.approx((3 * 4 / 3 + 5 * 4 / 5) / 2)
    assert found["weight"][0, 1] == pytest.approx(4 * 4 / 3)
    assert found["weight"][1].tolist() == [0, 0, 0]
    assert found["bias"].tolist() == [2.5, 2]  # one axis: as it is


def test_clients_count_by_their_examples_but_norms_do_not() -> None:
    found = folded(update([[2]], [0], examples=3), update([[8]], [0], examples=1))
    # Norms 2 and 8, mean 5, unweighted: both layers come to 5.
    assert found["weight"][0, 0] == pytest.approx((3 * 5 + 1 * 5) / 4)


def test_an_outlier_has_no_part_in_the_scale() -> None:
    calm = torch.ones(3, 7)
    wild = calm.clone()
    wild[0, 0] = 1000
    full = nn.Linear(7, 3)
    where = slice_map(full, nn.Linear(7, 3))
    before = {"weight": torch.ones(3, 7), "bias": torch.zeros(3)}
    scaled = ScaledByNorm(NestedMean(), before, LayerNorm95())
    for weight in (calm, wild):
        scaled.add(Update({"weight": weight, "bias": torch.zeros(3)}, where))
    # 21 weights: the percentile is the 20th of them, 1. Norms of 21 and 20 ones.
    mean = (math.sqrt(21) + math.sqrt(20)) / 2
    alphas = mean / math.sqrt(21), mean / math.sqrt(20)
    found = scaled.result(before)["weight"]
    assert found[2, 2] == pytest.approx(sum(alphas) / 2)
    assert found[0, 0] == pytest.approx((alphas[0] + 1000 * alphas[1]) / 2)


def test_an_amplified_update_weighs_no_more_than_others() -> None:
    honest = [update([[1, 1, 1], [1, 1, 1]], [0, 0]) for _ in range(4)]
    attacker = update([[-100, -100, -100], [-100, -100, -100]], [0, 0])
    size = math.sqrt(6)
    mean = (4 * size + 100 * size) / 5
    # Each layer comes to the same size: four of one sign, one of the other.
    assert folded(*honest, attacker)["weight"][0, 0] == pytest.approx(mean / size * 3 / 5)


def test_what_nobody_held_keeps_its_value_exactly() -> None:
    found = folded(update([[5]], [4]))
    assert found["weight"][0, 0] == pytest.approx(5)
    assert torch.equal(found["weight"][:, 1:], start()["weight"][:, 1:])
    assert torch.equal(found["weight"][1], start()["weight"][1])
    assert found["bias"].tolist() == [4, 9]


def test_a_round_without_replies_changes_nothing() -> None:
    found = folded()
    assert all(torch.equal(found[name], tensor) for name, tensor in start().items())


def test_a_layer_without_a_norm_is_taken_as_it_is() -> None:
    rare = torch.zeros(5, 8)
    rare[0, 0] = 7  # 39 of 40 are 0, and so is the percentile
    full = nn.Linear(8, 5)
    where = slice_map(full, nn.Linear(8, 5))
    before = {"weight": torch.ones(5, 8), "bias": torch.zeros(5)}
    scaled = ScaledByNorm(NestedMean(), before, LayerNorm95())
    plain = torch.full((5, 8), 2.0)
    for weight in (rare, plain):
        scaled.add(Update({"weight": weight, "bias": torch.zeros(5)}, where))
    mean, own = 2 * math.sqrt(40) / 2, 2 * math.sqrt(40)
    found = scaled.result(before)["weight"]
    assert found[0, 0] == pytest.approx((7 + 2 * mean / own) / 2)
    assert found[1, 1] == pytest.approx((0 + 2 * mean / own) / 2)


def test_zeros_of_all_clients_are_zeros() -> None:
    nothing = update([[0, 0, 0], [0, 0, 0]], [0, 0])
    assert folded(nothing, nothing)["weight"].tolist() == [[0, 0, 0], [0, 0, 0]]


def test_equal_clients_are_averaged_as_they_are() -> None:
    chance = torch.Generator().manual_seed(0)
    states = [
        {"weight": torch.randn(2, 3, generator=chance), "bias": torch.randn(2, generator=chance)}
    ] * 5
    updates = [Update(state, part(2, 3)) for state in states]
    found = folded(*updates)
    torch.testing.assert_close(found["weight"], states[0]["weight"], rtol=2e-7, atol=0)
    assert torch.equal(found["bias"], states[0]["bias"])


def test_a_refused_update_leaves_no_trace() -> None:
    scaled = ScaledByNorm(NestedMean(), start(), LayerNorm95())
    scaled.add(update([[2]], [0]))
    with pytest.raises(RefusedUpdateError, match="weight"):
        scaled.add(update([[8]], [0], examples=2.0**40))
    assert scaled.result(start())["weight"][0, 0] == pytest.approx(2)


@pytest.mark.parametrize(
    ("reading", "kept"),
    [
        # Of -10, 1, 2, ..., 19 (20 values): the 95th percentiles and what is within.
        ("magnitude", [*range(1, 19), -10]),
        ("signed", [*range(1, 19), -10]),
        ("central", [*range(1, 19)]),
    ],
)
def test_three_readings_of_the_percentile(reading: Reading, kept: list[float]) -> None:
    values = torch.tensor([-10.0, *range(1, 20)])
    assert LayerNorm95(95, reading).of(values) == pytest.approx(math.sqrt(sum(v * v for v in kept)))


def test_signed_keeps_what_is_far_below() -> None:
    values = torch.tensor([-1000.0, *[1.0] * 18, 2.0])
    assert LayerNorm95(95, "signed").of(values) == pytest.approx(math.sqrt(18 + 1000**2))
    assert LayerNorm95(95, "magnitude").of(values) < 5


def test_the_root_mean_square_does_not_grow_with_the_width() -> None:
    norm = LayerNorm95(scale="rms")
    assert norm.of(torch.ones(3, 4)) == norm.of(torch.ones(30, 40)) == 1
    found = folded(update([[1, 1, 1], [1, 1, 1]], [0, 0]), update([[1]], [0]), norm=norm)
    assert torch.allclose(found["weight"], torch.ones(2, 3))


def test_without_a_scale_it_is_the_nested_mean_bit_for_bit() -> None:
    updates = update([[0.1, 0.2, 0.7], [3, 4, 5]], [1, 2]), update([[0.9]], [4])
    mean = NestedMean()
    for each in updates:
        mean.add(each)
    plain, found = mean.result(start()), folded(*updates, norm=LayerNorm95(scale="none"))
    assert all(torch.equal(plain[name], found[name]) for name in plain)


# --- one pass gives what the paper's two passes give ---------------------------------------------


@st.composite
def fleets(draw: st.DrawFn) -> list[Update]:
    chance = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    found = []
    for _ in range(draw(st.integers(1, 5))):
        rows, columns = draw(st.integers(1, 2)), draw(st.integers(1, 3))
        size = 10.0 ** draw(st.integers(-3, 3))
        state = {
            "weight": size * torch.randn(rows, columns, generator=chance),
            "bias": torch.randn(rows, generator=chance),
        }
        if draw(st.integers(0, 5)) == 0:
            state["weight"].zero_()
        found.append(Update(state, part(rows, columns), draw(st.integers(1, 500))))
    return found


def two_passes(updates: list[Update], before: State, norm: LayerNorm95) -> dict[str, np.ndarray]:
    """Algorithm 1, lines 13 to 22, as printed: norms of all clients first, then the sums."""
    found = {}
    for name, old in before.items():
        sums, counts = np.zeros(old.shape), np.zeros(old.shape)
        layers = [(each.state[name].double().numpy(), each.weight) for each in updates]
        norms = [norm.of(torch.from_numpy(layer)) for layer, _ in layers]
        mean = sum(norms) / len(norms)
        for (layer, examples), own in zip(layers, norms, strict=True):
            alpha = mean / own if layer.ndim > 1 and own else 1.0
            place = tuple(slice(0, size) for size in layer.shape)
            sums[place] += examples * alpha * layer
            counts[place] += examples
        with np.errstate(invalid="ignore"):
            found[name] = np.where(counts > 0, sums / counts, old.double().numpy())
    return found


@settings(max_examples=60, deadline=None)
@given(fleets(), st.sampled_from(get_args(Reading)))
def test_one_pass_is_the_papers_two(updates: list[Update], reading: Reading) -> None:
    norm = LayerNorm95(reading=reading)
    expected, found = two_passes(updates, start(), norm), folded(*updates, norm=norm)
    largest = max(float(each.state["weight"].abs().max()) for each in updates)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name].numpy(), values, rtol=3e-6, atol=1e-6 * largest)


@settings(max_examples=15, deadline=None)
@given(fleets())
def test_the_order_of_the_replies_changes_no_bit(updates: list[Update]) -> None:
    first = folded(*updates)
    for order in itertools.islice(itertools.permutations(updates), 1, 4):
        again = folded(*order)
        assert all(torch.equal(first[name], again[name]) for name in first)
