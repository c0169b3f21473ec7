"""Compares a training step of slices with the full network's: slices are smaller, not masked."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F

from benchmarks.timing import medians
from models import Slice
from models.task import Task
from strategies.levels.cost import cost
from strategies.levels.patterns import read_pattern

RESNET18 = {
    "full": Slice(),
    "half_width": Slice(width=0.5),
    "half_the_blocks": Slice(blocks=((0,), (0,), (0,), (0,))),
    "half_the_depth": Slice(exits=(4,)),
    "both": Slice(width=0.5, exits=(4,)),
}
RESNET56 = {
    "full": Slice(),
    "nefl_d_0.2": Slice(blocks=read_pattern("110000000 110000000 110000000", "resnet56")),
    "nefl_wd_0.2": Slice(
        width=0.46**0.5,
        blocks=read_pattern("111100000 111100000 111100000", "resnet56"),
        rounding="ceil",
    ),
    "nefl_w_0.2": Slice(width=0.2**0.5, rounding="ceil"),
}
"""The full network, and the smallest submodels of NeFL's Table 12."""


def training_step(task: Task, held: Slice, batch: int = 32) -> Callable[[], None]:
    net = task.build(held)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))

    def step() -> None:
        optimiser.zero_grad()
        F.cross_entropy(net(images)[-1], labels).backward()
        optimiser.step()

    return step


def size(task: Task, held: Slice) -> int:
    """Return the bytes of a slice's tensors, as they are sent."""
    tensors = task.build(held, "meta").state_dict().values()
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def compare(task: Task, slices: Mapping[str, Slice]) -> None:
    seconds = medians(7, **{name: training_step(task, held) for name, held in slices.items()})
    print(
        f"{task.model}, batch 32: a training step; time, MACs and bytes as shares of the full one's"
    )
    for name, held in slices.items():
        time, macs = seconds[name] / seconds["full"], cost(task, held).macs / cost(task).macs
        sent = size(task, held) / size(task, Slice())
        print(
            f"  {name:16} {1000 * seconds[name]:7.1f} ms  time {time:.2f}  MACs {macs:.2f}  "
            f"bytes {sent:.3f}"
        )


def main() -> None:
    compare(Task("resnet18", options=(("head", "pool"),)), RESNET18)
    steps = (("norm", "bn-running"), ("steps", "learnable"))
    compare(Task("resnet56", options=steps), RESNET56)


if __name__ == "__main__":
    main()
