"""Compares nestfl's local training with a bare PyTorch loop: the ratio of steps per second.

Both train the same slice on the same images, in turns, so that a busy machine slows both equally.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from data.catalog import IMAGES
from data.examples import ImageData
from models import Slice, SlicedNetwork, build
from protocol.train_settings import TrainSettings
from training.devices import set_threads
from training.fitting import fit
from training.local_training import plain_loss

TARGET = 0.95


def bare_loop(net: SlicedNetwork, images: Tensor, labels: Tensor, settings: TrainSettings) -> None:
    """Train in a plain loop: images are floats already, and nothing is checked."""
    optimiser = torch.optim.SGD(
        net.parameters(),
        lr=settings.lr,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )
    net.train()
    order = torch.randperm(len(labels))
    for start in range(0, len(order), settings.batch_size):
        rows = order[start : start + settings.batch_size]
        loss = F.cross_entropy(net(images[rows])[-1], labels[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def random_images(count: int) -> ImageData:
    chance = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, 32, 32), generator=chance, dtype=torch.uint8)
    labels = torch.randint(0, 10, (count,), generator=chance)
    return ImageData(images, labels, IMAGES["cifar10"])


def compare(model: str, width: float, batch_size: int, steps: int, repeats: int) -> None:
    data = random_images(batch_size * steps)
    images, labels = next(data.batches(len(data)))
    chosen = TrainSettings(
        epochs=1, batch_size=batch_size, lr=0.01, schedule="constant", augment=False, device="cpu"
    )
    plain = replace(chosen, channels_last="off")
    net = build(model, 10, slice=Slice(width=width))
    ways: dict[str, Callable[[], object]] = {
        "bare": lambda: bare_loop(net, images, labels, plain),
        "nestfl, same layout": lambda: fit(net, data, plain_loss, plain, round=1, seed=0),
        "nestfl": lambda: fit(net, data, plain_loss, chosen, round=1, seed=0),
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    for repeat in range(repeats + 1):
        for way, run in ways.items():
            started = time.perf_counter()
            run()
            if repeat:  # the first turn warms up
                times[way].append(time.perf_counter() - started)
    speed = {way: steps / statistics.median(taken) for way, taken in times.items()}
    print(f"{model} width {width}, batches of {batch_size}:")
    for way, rate in speed.items():
        verdict = "" if way == "bare" else f"  {rate / speed['bare']:.2f} of bare, target {TARGET}"
        print(f"  {way:20} {rate:7.2f} steps/s{verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    print(f"{set_threads()} threads")
    for model, width, batch_size in (
        ("resnet20", 0.25, 16),
        ("resnet20", 1.0, 32),
        ("resnet18", 0.25, 32),
    ):
        compare(model, width, batch_size, arguments.steps, arguments.repeats)


if __name__ == "__main__":
    main()
