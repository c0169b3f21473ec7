"""The facts that families state of their networks are true."""

from __future__ import annotations

import pytest

from models import Slice, SliceError, build, family

BLOCKY = (
    "bert-tiny", "conv1d", "efficientnet_b4", "efficientnet_v2-mini", "mobilenet_v2-mini",
    "preresnet-mini", "resnet20", "vit-micro",
)  # fmt: skip


@pytest.mark.parametrize("name", BLOCKY)
def test_the_tensors_of_each_block_have_the_names_that_the_family_says(name: str) -> None:
    known, tensors = family(name), build(name, 10, device="meta").state_dict()
    for stage, count in enumerate(known.stages, 1):
        for block in range(count):
            begin = known.blocks.format(stage=stage, block=block)
            assert any(tensor.startswith(begin) for tensor in tensors), begin


@pytest.mark.parametrize("name", BLOCKY)
def test_a_family_says_whether_first_blocks_may_be_absent(name: str) -> None:
    known = family(name)
    held = Slice(blocks=tuple(tuple(range(1, count)) for count in known.stages))
    if known.keeps_first:
        with pytest.raises(SliceError, match="stage 1: block 0"):
            build(name, 10, slice=held, device="meta")
    else:
        build(name, 10, slice=held, device="meta")
