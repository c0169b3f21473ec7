"""Costs of slices: parameters, MACs and memory, counted alone and together."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from models import Slice
from models.task import Task
from strategies.levels.cost import (
    COST_KINDS,
    NORMABLE,
    Cost,
    cost,
    cost_by_exit,
    macs_by_exit,
    path_costs,
)


def some_exits(units: int) -> list[tuple[int, ...]]:
    """Exits alone and in company, at the end and before it."""
    middle = units // 2
    return [(middle,), (1, middle), (middle, units - 1), (1, middle, units), (units,)]


@pytest.mark.parametrize(
    ("model", "option"),
    [
        ("resnet20", ("head", "conv")),
        ("resnet20", ("head", "pool")),
        ("resnet18", ("norm", "bn-running")),
        ("resnet20", ("norm", "gn")),
        ("msdnet24", ("norm", "bn")),
        ("efficientnet_b4", ("head", "pool")),
        ("preresnet-mini", ("head", "attention")),
        ("mobilenet_v2-mini", ("norm", "gn")),
        ("conv1d", ("kernel", 3)),
        ("bert-mini", ("vocabulary", 100)),
        ("vit-micro", ("heads", "fewer")),
    ],
)
def test_what_the_search_believes_is_what_slices_cost(
    model: str, option: tuple[str, object]
) -> None:
    """One pass with an exit after every unit, against each slice by itself."""
    task = Task(model, options=(option,), tokens=16, length=20)
    everywhere = Slice(0.7, exits=tuple(range(1, task.units + 1)))
    believed = {kind: path_costs(task, everywhere, kind) for kind in COST_KINDS}
    for exits in some_exits(task.units):
        alone = cost(task, Slice(0.7, exits=exits), batch=NORMABLE)
        for kind in COST_KINDS:
            assert believed[kind].of(exits).of(kind) == alone.of(kind), (exits, kind)


@settings(max_examples=15)
@given(st.sets(st.integers(1, 9), min_size=1), st.sampled_from([0.35, 0.7, 1.0]))
def test_any_exits_cost_what_they_cost_together(exits: set[int], width: float) -> None:
    task = Task("resnet20", image_size=8)
    everywhere = Slice(width, exits=tuple(range(1, 10)))
    alone = cost(task, Slice(width, exits=tuple(sorted(exits))), batch=NORMABLE)
    for kind in COST_KINDS:
        assert path_costs(task, everywhere, kind).of(exits).of(kind) == alone.of(kind)


def test_the_cost_of_each_exit_is_of_what_runs_up_to_it() -> None:
    task, held = Task("resnet20", image_size=8), Slice(0.5, exits=(3, 6, 9))
    by_exit = cost_by_exit(task, held, batch=4)
    assert by_exit[-1] == cost(task, held, batch=4)
    assert [each.macs for each in by_exit] == macs_by_exit(task, held)
    assert by_exit[0] == cost(task, Slice(0.5, exits=(3,)), batch=4)


def test_the_tensors_of_the_network_itself_are_counted_at_every_exit() -> None:
    task, held = Task("vit-micro", options=(("steps", "learnable"),)), Slice(0.5, exits=(1, 4))
    first, last = cost_by_exit(task, held, batch=2)
    net = task.build(Slice(0.5, exits=(1,)), "meta")
    assert "class_token" in dict(net.named_parameters(recurse=False))
    assert first.parameters == sum(tensor.numel() for tensor in net.parameters())
    assert last == cost(task, held, batch=2)


def test_memory_is_what_autograd_keeps() -> None:
    """`meta` against the tensors that a real forward pass saves for its backward one."""
    task = Task("resnet20", in_channels=1, image_size=8)
    held = Slice(width=1 / 16, exits=(1,))
    kept: dict[int, int] = {}
    net = task.build(held).train()
    weights = {p.untyped_storage().data_ptr() for p in net.parameters()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            alive.append(storage)
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    alive: list[torch.UntypedStorage] = []
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        net(torch.randn(2, 1, 8, 8))
    found = cost(task, held, batch=2).memory
    assert abs(found - sum(kept.values())) <= 0.05 * sum(kept.values())


def test_a_linear_layers_cost_by_hand() -> None:
    six, seven = (cost(Task("resnet20", num_classes=classes)) for classes in (6, 7))
    assert (seven.parameters - six.parameters, seven.macs - six.macs) == (64 + 1, 64)


def test_a_networks_macs_by_hand() -> None:
    """Of three stages, of 32, 16 and 8 pixels' side.

    All 3x3 convolutions within a stage take the same. The first of a stage that halves the side and
    doubles the channels takes half of that, and has a 1x1 convolution beside it.
    """
    stem, head = 3 * 16 * 9 * 32**2, 64 * 10
    convolution, shortcut = 16 * 16 * 9 * 32**2, 16 * 32 * 16**2
    expected = stem + 16 * convolution + 2 * (convolution // 2) + 2 * shortcut + head
    assert cost(Task("resnet20")).macs == expected


def test_macs_are_those_of_one_image_whatever_the_batch() -> None:
    task = Task("resnet20", image_size=8)
    assert cost(task, batch=4).macs == cost(task).macs
    assert cost(task, batch=4).memory > 3.7 * cost(task).memory  # all but the norms' statistics


def test_images_that_shrink_to_one_pixel_can_be_counted() -> None:
    assert cost(Task("resnet18", in_channels=1, image_size=8)).parameters == 11_172_810


def test_cost_grows_with_width_and_depth() -> None:
    task = Task("resnet20")
    by_width = [cost(task, Slice(width=w)) for w in (0.25, 0.5, 1.0)]
    by_depth = [cost(task, Slice(exits=(d,))) for d in (2, 5, 8)]
    for costs in (by_width, by_depth):
        for less, more in pairwise(costs):
            assert less.parameters < more.parameters
            assert less.macs < more.macs
            assert less.memory < more.memory


def test_counting_touches_no_real_weights() -> None:
    made: list[str] = []
    original = nn.Parameter.__new__

    def spy(*args: object, **kwargs: object) -> nn.Parameter:
        parameter: nn.Parameter = original(*args, **kwargs)  # type: ignore[arg-type]
        made.append(parameter.device.type)
        return parameter

    nn.Parameter.__new__ = spy  # type: ignore[method-assign,assignment]
    try:
        cost(Task("resnet34", num_classes=3))
    finally:
        nn.Parameter.__new__ = original  # type: ignore[method-assign]
    assert set(made) == {"meta"}


def test_an_unknown_cost_is_an_error_with_the_choices() -> None:
    with pytest.raises(ValueError, match="unknown cost 'flops'; choose from parameters, macs, mem"):
        Cost().of("flops")


def test_without_a_batch_the_cost_is_that_of_one_image() -> None:
    task = Task("resnet20", image_size=8)
    pair = cost(task, batch=2)
    assert cost(task) == Cost(pair.parameters, pair.macs, pair.memory // 2)
    assert Cost() == Cost(0, 0, 0)


def test_the_costs_of_a_path_are_those_of_the_exits_that_are_named() -> None:
    with pytest.raises(ValueError, match="a slice without exits: expected those whose costs"):
        path_costs(Task("resnet20"), Slice(), "parameters")
