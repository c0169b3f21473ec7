"""A training step of slices against the full network's: slices are really smaller, not masked."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from benchmarks.timing import medians
from models import Slice, build
from models.task import Task
from strategies.levels.cost import cost

SLICES = {
    "full": Slice(),
    "half_width": Slice(width=0.5),
    "half_the_blocks": Slice(blocks=((0,), (0,), (0,), (0,))),
    "half_the_depth": Slice(exits=(4,)),
    "both": Slice(width=0.5, exits=(4,)),
}


def training_step(held: Slice, batch: int = 32) -> Callable[[], None]:
    net = build("resnet18", 10, slice=held, head="pool")
    optimiser = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))

    def step() -> None:
        optimiser.zero_grad()
        F.cross_entropy(net(images)[-1], labels).backward()
        optimiser.step()

    return step


def main() -> None:
    task = Task("resnet18", options=(("head", "pool"),))
    seconds = medians(7, **{name: training_step(held) for name, held in SLICES.items()})
    print("ResNet-18, batch 32: a training step, its time and MACs as a share of the full one's")
    for name, held in SLICES.items():
        time, macs = seconds[name] / seconds["full"], cost(task, held).macs / cost(task).macs
        print(f"  {name:16} {1000 * seconds[name]:7.1f} ms  time {time:.2f}  MACs {macs:.2f}")


if __name__ == "__main__":
    main()
