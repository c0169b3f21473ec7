"""Folding and extracting 20 clients' ResNet-18 slices, against a plain add and a plain copy.

The plain operations move as many bytes in one contiguous float32 tensor. Extraction makes new
tensors, so it is compared with a copy into new memory and with one into memory that is there.
"""

from __future__ import annotations

import torch

from benchmarks.timing import medians
from models import Slice, build, extract, slice_map
from strategies.aggregation import NestedMean

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
        nonlocal mean
        for reply, mapping in zip(replies, maps, strict=True):
            mean.add(reply, mapping)

    def fold_into_new_sums() -> None:
        nonlocal mean
        mean = NestedMean()
        fold()

    seconds = medians(
        15,
        add=lambda: total.add_(addend),
        fold=fold,
        fold_into_new_sums=fold_into_new_sums,
        result=lambda: mean.result(state),
        copy=lambda: total.copy_(addend),
        copy_into_new_memory=lambda: addend.clone(),
        extract=lambda: [extract(state, mapping) for mapping in maps],
    )
    print(f"{CLIENTS} clients, widths {WIDTHS}, {4 * values / 1e6:.0f} MB of float32")
    for name, time in seconds.items():
        print(f"  {name:22} {1000 * time:7.1f} ms  {4 * values / time / 1e9:6.1f} GB/s")
    print(
        f"fold / plain add_:              {seconds['add'] / seconds['fold']:.2f} of its bandwidth"
    )
    print(f"extract / plain copy:           {seconds['copy'] / seconds['extract']:.2f}")
    fresh = seconds["copy_into_new_memory"] / seconds["extract"]
    print(f"extract / copy into new memory: {fresh:.2f}")


if __name__ == "__main__":
    main()
