"""Bugs of public code in slicing and averaging, each with a proof that ours lacks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor

from models import Slice, SlicedNetwork, SliceError, SliceMap, Window, build, extract, slice_map
from models.slicing import is_running_statistic
from strategies.aggregation.nested_mean import NestedMean
from strategies.aggregation.update import Update
from tests.support.toy_networks import Attention, Dense

EXITS = (3, 6, 9)
LEVELS = [
    Slice(width=0.5, exits=(3,)),
    Slice(width=0.75, exits=(3, 6)),
    Slice(exits=EXITS),
]


def statistics_in(bank: str) -> Callable[[str], str | None]:
    return lambda name: bank if is_running_statistic(name) else None


def global_network() -> SlicedNetwork:
    return build("resnet20", 10, slice=Slice(exits=EXITS))


def level(full: SlicedNetwork, held: Slice) -> tuple[SlicedNetwork, SliceMap]:
    net = build("resnet20", 10, slice=held)
    mapping = slice_map(full, net)
    net.load_state_dict(extract(full.state_dict(), mapping))
    return net, mapping


def train(net: SlicedNetwork) -> dict[str, Tensor]:
    """One step of SGD on the cross-entropy of all exits held."""
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    images, labels = torch.randn(16, 3, 16, 16), torch.randint(10, (16,))
    sum(F.cross_entropy(logits, labels) for logits in net(images)).backward()  # type: ignore[union-attr]
    optimiser.step()
    return net.state_dict()


def test_1_entries_and_blocks_that_nobody_held_are_not_zeroed() -> None:
    full = global_network()
    before = {name: tensor.clone() for name, tensor in full.state_dict().items()}
    net, mapping = level(full, LEVELS[0])
    mean = NestedMean()
    mean.add(Update(train(net), mapping))
    after = mean.result(full.state_dict())
    assert torch.equal(after["layer3.2.conv2.weight"], before["layer3.2.conv2.weight"])
    assert torch.equal(after["conv1.weight"][8:], before["conv1.weight"][8:])
    assert torch.equal(after["exits.3.convs.0.weight"][8:], before["exits.3.convs.0.weight"][8:])


def test_2_every_tensor_of_the_global_model_changes_in_a_round_heads_too() -> None:
    full = global_network()
    mean = NestedMean()
    for held in LEVELS:
        net, mapping = level(full, held)
        mean.add(Update(train(net), mapping))
    before, after = full.state_dict(), mean.result(full.state_dict())
    assert [name for name in before if torch.equal(after[name], before[name])] == []


def test_4_concatenated_channels_stay_aligned() -> None:
    full, half = Dense(), Dense(Slice(width=0.5))
    mapping = slice_map(full, half)
    joined = extract({k: v.detach() for k, v in full.state_dict().items()}, mapping)["join.weight"]
    # 2 of the first 4 channels, then 3 of the 6 that follow: not the first 5 of 10
    assert torch.equal(joined, full.join.weight[:4][:, [0, 1, 4, 5, 6]])


def test_4_fused_attention_is_cut_in_each_head_of_each_of_q_k_v() -> None:
    full, half = Attention(), Attention(Slice(width=0.5))
    cut = extract(full.state_dict(), slice_map(full, half))["qkv.bias"]
    assert torch.equal(cut, full.qkv.bias[[0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21]])


def test_5_wrap_around_windows_read_the_right_rows() -> None:
    full, half = Dense(), Dense(Slice(width=0.5))
    mapping = slice_map(full, half, Window("rolling", 3))
    cut = extract(full.state_dict(), mapping)
    assert torch.equal(cut["one.weight"], full.one.weight[[3, 0]])
    assert torch.equal(cut["two.weight"], full.two.weight[[3, 4, 5]][:, [3, 0]])
    # parts of 4 and 6: 3 and 0 of the first; 3, 4 and 5 of the second, which begins at 4
    assert torch.equal(cut["join.weight"], full.join.weight[[3, 4, 5, 6]][:, [3, 0, 7, 8, 9]])


@pytest.mark.parametrize("held", LEVELS)
def test_6_every_tensor_sent_gets_a_gradient(held: Slice) -> None:
    net, mapping = level(global_network(), held)
    train(net)
    idle = [n for n, p in net.named_parameters() if p.grad is None or not p.grad.any()]
    assert idle == []
    assert set(mapping.regions) == {name for name, _ in net.named_parameters()}


def test_8_no_pre_trained_weight_is_dropped() -> None:
    pretrained = torchvision.models.resnet18(num_classes=10).state_dict()
    options: dict[str, Any] = {"stem": "imagenet", "norm": "bn-running"}
    full = build("resnet18", 10, **options)
    full.load_state_dict(pretrained)
    half = build("resnet18", 10, slice=Slice(width=0.5), **options)
    mapping = slice_map(full, half, bank_of=lambda name: None)
    for name, tensor in extract(full.state_dict(), mapping).items():
        corner = tuple(slice(0, size) for size in tensor.shape)
        assert torch.equal(tensor, pretrained[name][corner])
    assert mapping.regions.keys() == pretrained.keys()


def test_9_biased_layers_are_sliced_and_averaged() -> None:
    full, half = Dense(), Dense(Slice(width=0.5))
    mapping = slice_map(full, half)
    mean = NestedMean()
    mean.add(Update({name: torch.ones_like(t) for name, t in half.state_dict().items()}, mapping))
    assert mean.result({k: v * 0 for k, v in full.state_dict().items()})["two.bias"].tolist() == [
        1, 1, 1, 0, 0, 0,
    ]  # fmt: skip


def test_10_statistics_of_different_widths_are_never_averaged() -> None:
    full = build("resnet20", 10, norm="bn-running")
    half = build("resnet20", 10, slice=Slice(width=0.5), norm="bn-running")
    with pytest.raises(SliceError, match=r"bn1.running_mean: \(8,\) of \(16,\).* bank"):
        slice_map(full, half)
    banks = {
        "whole": slice_map(full, full, bank_of=statistics_in("whole")),
        "half": slice_map(full, half, bank_of=statistics_in("half")),
    }
    state = full.state_dict()
    for bank, net in (("whole", full), ("half", half)):
        state |= {f"{k}@{bank}": v.clone() for k, v in net.state_dict().items() if "running" in k
                  or "tracked" in k}  # fmt: skip
    mean = NestedMean()
    for bank, value in (("whole", 1.0), ("half", 3.0), ("half", 5.0)):
        reply = extract(state, banks[bank])
        reply["bn1.running_mean"].fill_(value)
        mean.add(Update(reply, banks[bank]))
    after = mean.result(state)
    assert after["bn1.running_mean@whole"].tolist() == [1.0] * 16
    assert after["bn1.running_mean@half"].tolist() == [4.0] * 8
