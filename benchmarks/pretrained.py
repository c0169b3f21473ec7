"""Checks that published ResNets for CIFAR-10 keep their test accuracy in nestfl's networks.

    python -m benchmarks.pretrained FOLDER

The folder holds cifar10-test.parquet and cifar10-resnet{20,56}.safetensors, the networks of
github.com/akamaster/pytorch_resnet_cifar10 (published: 91.73 and 93.39 %).
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from data.catalog import IMAGES
from data.clients import global_test
from data.examples import Examples
from data.spec import DatasetSpec
from models.families import SlicedNetwork
from models.loading import load_pretrained
from models.slicing import Slice
from models.task import Task

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and deviation of the normalisation of these networks' images."""


def accuracy(net: SlicedNetwork, data: Examples) -> float:
    facts = IMAGES["cifar10"]
    own_mean, own_std, mean, std = (
        torch.tensor(each).view(3, 1, 1) for each in (facts.mean, facts.std, MEAN, STD)
    )
    hits = 0
    with torch.inference_mode():
        for images, labels in data.batches(250):
            answers = net((images * own_std + own_mean - mean) / std)[-1]
            hits += int((answers.argmax(1) == labels).sum())
    return hits / len(data)


def main() -> None:
    folder = Path(sys.argv[1])
    data = global_test(DatasetSpec(name="cifar10", path=str(folder)))
    options = (("norm", "bn-running"), ("shortcut", "A"), ("steps", "learnable"))
    for depth in (20, 56):
        task = Task(f"resnet{depth}", 10, options=options)
        net = task.build(Slice())
        load_pretrained(task, net, load_file(folder / f"cifar10-resnet{depth}.safetensors"))
        print(f"{task.model}: {accuracy(net.eval(), data):.2%} of {len(data)} test images")


if __name__ == "__main__":
    main()
