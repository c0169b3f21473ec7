"""The Transformer that predicts the next word: no answer sees later words; slices are parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from models import Slice, SlicedNetwork, SliceError, Task, build, extract, family, slice_map
from strategies.levels.cost import cost

WORDS = 11
TEXTS = torch.randint(WORDS, (3, 8), generator=torch.Generator().manual_seed(3))


def network(slice: Slice = Slice(), **options: Any) -> SlicedNetwork:  # noqa: B008  (frozen)
    return build("transformer", WORDS, slice=slice, positions=8, **options)


def randomised(net: SlicedNetwork) -> SlicedNetwork:
    """No parameter at a special value: norms too are random."""
    chance = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in net.parameters():
            tensor.copy_(torch.randn(tensor.shape, generator=chance) * 0.3)
    return net


def part_of(full: SlicedNetwork, slice: Slice) -> dict[str, Tensor]:
    part = network(slice)
    part.load_state_dict(extract(full.state_dict(), slice_map(full, part)))
    return part.state_dict()


def test_every_word_has_an_answer_in_the_order_of_the_labels() -> None:
    net = randomised(network())
    (logits,) = net(TEXTS)
    assert logits.shape == (24, WORDS)
    (alone,) = net(TEXTS[1:2])
    torch.testing.assert_close(logits[8:16], alone)


@pytest.mark.parametrize("place", range(1, 8))
def test_a_later_word_changes_no_earlier_answer(place: int) -> None:
    net = randomised(network()).eval()
    other = TEXTS.clone()
    other[:, place] = (other[:, place] + 1) % WORDS
    before, after = (net(texts)[0].view(3, 8, WORDS) for texts in (TEXTS, other))
    assert torch.equal(before[:, :place], after[:, :place])
    assert not torch.equal(before[:, place], after[:, place])
    (shorter,) = net(TEXTS[:, :place])
    torch.testing.assert_close(shorter.view(3, place, WORDS), before[:, :place])


def test_places_matter() -> None:
    net = randomised(network()).eval()
    (logits,) = net(torch.full((1, 8), 4))
    assert not torch.allclose(logits[0], logits[1])


def test_longer_texts_than_it_has_places_for_are_refused() -> None:
    with pytest.raises(ValueError, match=r"9 tokens: this Transformer reads up to 8 \(positions\)"):
        network()(torch.zeros(1, 9, dtype=torch.int64))


def test_it_is_that_of_table_4() -> None:
    state = network().state_dict()
    for layer in ("layer1.0", "layer1.1", *(f"layer2.{number}" for number in range(5))):
        assert state[f"{layer}.attention.in_proj_weight"].shape == (192, 64)
        assert state[f"{layer}.attention.out_proj.weight"].shape == (64, 64)
        hidden = 64 if layer.startswith("layer1") else 88
        assert state[f"{layer}.linear1.weight"].shape == (hidden, 64)
    assert state["head.classifier.weight"].shape == (WORDS, 64)
    task = Task("transformer", WORDS, options=(("positions", 8),), tokens=8)
    matrices = 7 * 4 * 64 * 64 + 2 * 64 * (2 * 64 + 5 * 88) + 64 * WORDS
    assert cost(task).macs == 8 * matrices + 7 * 2 * 8 * 8 * 64


@pytest.mark.parametrize("name", ["transformer", "transformer-micro"])
def test_the_layers_of_a_stage_have_the_same_tensors(name: str) -> None:
    found, state = family(name), build(name, WORDS).state_dict()
    assert found.reads == "language"
    for stage, blocks in enumerate(found.stages, 1):
        prefixes = [found.blocks.format(stage=stage, block=block) for block in range(blocks)]
        shapes = [
            {n.removeprefix(prefix): t.shape for n, t in state.items() if n.startswith(prefix)}
            for prefix in prefixes
        ]
        assert shapes[0]
        assert all(each == shapes[0] for each in shapes)


def test_a_width_for_each_stage_leaves_the_residual_stream_whole() -> None:
    full = randomised(network())
    candidates = family("transformer").candidates
    assert candidates is not None
    assert len(candidates) == 16
    hidden = set()
    for chosen in candidates:
        assert chosen.blocks is not None
        state, whole = part_of(full, chosen), full.state_dict()
        assert {name.split(".")[1] for name in state if name.startswith("layer2")} == {
            str(block) for block in chosen.blocks[1]
        }
        for name, tensor in state.items():
            prefix = tuple(slice(0, length) for length in tensor.shape)
            assert torch.equal(tensor, whole[name][prefix]), name
            if not (name.startswith("layer2") and "linear" in name):
                assert tensor.shape == whole[name].shape, name
        hidden.add(len(state["layer2.0.linear1.bias"]))
    assert hidden == {64, 72, 80, 88}
    assert part_of(full, candidates.largest).keys() == full.state_dict().keys()


def test_one_width_keeps_the_first_positions_of_every_head() -> None:
    full = randomised(network())
    state, whole = part_of(full, Slice(0.5)), full.state_dict()
    kept = [16 * head + place for head in range(4) for place in range(8)]
    fused = [64 * part + place for part in range(3) for place in kept]
    assert torch.equal(state["words.weight"], whole["words.weight"][:, kept])
    assert torch.equal(state["places.weight"], whole["places.weight"][:, kept])
    attention = "layer2.3.attention.in_proj_weight"
    assert torch.equal(state[attention], whole[attention][fused][:, kept])
    first, second = "layer2.3.linear1.weight", "layer2.3.linear2.weight"
    assert torch.equal(state[first], whole[first][:44][:, kept])
    assert torch.equal(state[second], whole[second][kept][:, :44])
    assert torch.equal(state["head.classifier.weight"], whole["head.classifier.weight"][:, kept])
    assert torch.equal(state["head.norm.bias"], whole["head.norm.bias"][kept])


@pytest.mark.parametrize(
    "part",
    [
        Slice(),
        Slice(0.3, rounding="ceil"),
        Slice((1.0, 0.75), ((0, 1), (0, 1))),
        Slice(0.5, exits=(2, 4)),
        Slice(exits=(3, 7)),
    ],
)
def test_all_that_a_slice_holds_is_trained(part: Slice) -> None:
    net = network(part, steps="learnable")
    texts = torch.arange(24).view(3, 8) % WORDS
    answers = net(texts)
    assert len(answers) == len(part.exits or (7,))
    labels = (texts.flatten() + 1) % WORDS
    torch.stack([F.cross_entropy(logits, labels) for logits in answers]).sum().backward()
    for name, tensor in net.named_parameters():
        assert tensor.grad is not None, name
        assert tensor.grad.any(), name


def test_slices_that_it_has_not_are_refused() -> None:
    with pytest.raises(SliceError, match="expected one share for each of 2 stages"):
        network(Slice((1.0, 1.0, 0.5)))
    with pytest.raises(SliceError, match=r"stage 2 has blocks 0 to 4; blocks \[5\] are not there"):
        network(Slice(blocks=((0, 1), (0, 5))))


def test_its_class_rows_are_those_of_words() -> None:
    rows = Task("transformer", WORDS).class_rows(Slice(0.5))
    assert rows == {"words.weight", "head.classifier.weight", "head.classifier.bias"}
