"""Compares aggregating and cutting 20 clients' ResNet-18 slices with a plain add and copy.

The plain operations move as many bytes in one contiguous float32 tensor. Extraction makes new
tensors, so it is compared with a copy into new memory and with a copy into existing memory.
"""

from __future__ import annotations

import torch

from benchmarks.timing import medians
from models import Slice, build, extract, slice_map
from strategies.aggregation.nested_mean import NestedMean
from strategies.aggregation.update import Update

WIDTHS = (1.0, 0.5, 0.25, 0.125)
CLIENTS = 20


def main() -> None:
    full = build("resnet18", 10)
    state = full.state_dict()
    levels = [
        slice_map(full, build("resnet18", 10, slice=Slice(width=width), device="meta"))
        for width in WIDTHS
    ]
    maps = levels * (CLIENTS // len(levels))
    replies = [extract(state, mapping) for mapping in maps]
    values = sum(tensor.numel() for reply in replies for tensor in reply.values())
    total, addend = torch.zeros(values), torch.randn(values)
    mean = NestedMean()

    def fold() -> None:
        for reply, mapping in zip(replies, maps, strict=True):
            mean.add(Update(reply, mapping))

    size = 4 * values
    print(f"{CLIENTS} clients, widths {WIDTHS}, {size / 1e6:.0f} MB of float32")
    folding = medians(15, add=lambda: total.add_(addend), fold=fold)
    report(size, folding)
    print(f"  fold has {folding['add'] / folding['fold']:.2f} of a plain add_'s bandwidth")
    extracting = medians(
        15,
        copy=lambda: total.copy_(addend),
        copy_into_new_memory=lambda: addend.clone(),
        extract=lambda: [extract(state, mapping) for mapping in maps],
    )
    report(size, extracting)
    ratios = [extracting[name] / extracting["extract"] for name in list(extracting)[:2]]
    print("  extract has {:.2f} of a copy's bandwidth, {:.2f} into new memory".format(*ratios))
    report(
        4 * sum(t.numel() for t in state.values()), medians(5, result=lambda: mean.result(state))
    )


def report(size: int, seconds: dict[str, float]) -> None:
    for name, time in seconds.items():
        print(f"  {name:22} {1000 * time:7.1f} ms  {size / time / 1e9:6.1f} GB/s")


if __name__ == "__main__":
    main()
