"""Early exits against always running to the end: accuracy and throughput, side by side.

    python -m benchmarks.adaptive_inference                        a ResNet-20 trained on digits
    python -m benchmarks.adaptive_inference cifar10 DATA WEIGHTS   exits on a trained ResNet-56

WEIGHTS is a safetensors file of a CIFAR ResNet-56 with padded shortcuts; its backbone stays as it
is and only the heads of its exits are trained. Thresholds and the budget are chosen on validation
data, the rest is measured on test data. The weights know all training images, so for them one half
of the test images is the validation data, and the other half is the test.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.timing import medians
from client_app.evaluation import evaluation_batches
from client_app.training import fit
from data import IMAGES, DatasetSpec, Examples, ImageData, all_clients, global_test
from inference import (
    anytime,
    classify,
    exits_taken,
    fit_thresholds,
    freeze,
    only_last_exit,
)
from models import Slice, Task
from models.registry import SlicedNetwork
from protocol.settings import TrainSettings
from strategies.cost import macs_by_exit

TOLERANCE = 0.003
"""How much accuracy on validation data may be given up for speed: the target on test is 0.005."""
PARTS, EPOCHS = 5, 1


@dataclass(frozen=True, eq=False)
class Case:
    """A trained network with frozen statistics, and the data that it is judged by."""

    name: str
    net: SlicedNetwork
    task: Task
    slice: Slice
    validation: Examples
    test: Examples


def digits() -> Case:
    task = Task("resnet20", 10, 1, 8, options=(("head", "pool"),))
    held = Slice(exits=(3, 5, 7, 9))
    spec = DatasetSpec("digits", clients=1, validation=0.2, test=0.0)
    clients = all_clients(spec)
    torch.manual_seed(0)
    net = task.build(held)
    settings = TrainSettings(epochs=1, lr=0.1, schedule="cosine", rounds=25)
    for number in range(1, settings.rounds + 1):
        fit(net, clients.train, all_exits, settings, number, seed=number)
    frozen = freeze(net, _batches(clients.train))
    return Case("digits", frozen, task, held, clients.validation, global_test(spec))


def cifar10(data: str, weights: str) -> Case:
    from safetensors.torch import load_file

    options = (("head", "pool"), ("norm", "bn-running"), ("shortcut", "A"))
    task, held = Task("resnet56", options=options), Slice(exits=(14, 18, 22, 27))
    spec = DatasetSpec("cifar10", data, clients=1, validation=0.0, test=0.0)
    # The weights want ImageNet's normalisation.
    facts = replace(IMAGES["cifar10"], mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    train, held_out = (
        replace(part, facts=facts)
        for part in (all_clients(spec).train, global_test(spec))
        if isinstance(part, ImageData)
    )
    validation, test = (
        replace(held_out, images=held_out.images[half::2], labels=held_out.labels[half::2])
        for half in (0, 1)
    )
    net = task.build(held)
    missing, unexpected = net.load_state_dict(load_file(weights), strict=False)
    assert not unexpected
    assert all(name.startswith("exits.") or "num_batches" in name for name in missing)
    tune(net, train)
    net.eval()
    return Case("cifar10", net, task, held, validation, test)


def all_exits(logits: list[Tensor], labels: Tensor) -> Tensor:
    return torch.stack([F.cross_entropy(answer, labels) for answer in logits]).sum()


def tune(net: SlicedNetwork, data: ImageData) -> None:
    """Some epochs of all exits and layers together, from the given weights on."""
    settings = TrainSettings(
        epochs=1, batch_size=64, lr=0.02, schedule="cosine", rounds=PARTS * EPOCHS
    )
    for number in range(settings.rounds):
        part = slice(number % PARTS, None, PARTS)
        some = replace(data, images=data.images[part], labels=data.labels[part])
        fit(net, some, all_exits, settings, number + 1, seed=number)


def measure(case: Case) -> None:
    costs = macs_by_exit(case.task, case.slice)
    exits = case.slice.exits or ()
    alone = only_last_exit(case.net, exits[-1])
    (full,) = macs_by_exit(case.task, replace(case.slice, exits=exits[-1:]))
    confidence, hits = judged(case.net, case.validation)
    thresholds = cheapest(confidence, hits, costs, full)

    test_confidence, test_hits = judged(case.net, case.test)
    taken = exits_taken(test_confidence, thresholds)
    early = float(test_hits.gather(0, taken[None]).float().mean())
    last = float(test_hits[-1].float().mean())
    spent = float(torch.tensor(costs, dtype=torch.float64)[taken].mean()) / full
    left = [f"{share:.0%}" for share in (torch.bincount(taken, minlength=len(exits)) / len(taken))]
    own = " ".join(f"{row.float().mean():.2%}" for row in test_hits)
    print(f"{case.name}: {case.task.model}, exits after {exits}, {len(taken)} test images")
    print(f"  accuracy of each exit   {own}")
    print(f"  thresholds              {' '.join(f'{t:.3f}' for t in thresholds)}")
    print(f"  left at each exit       {' '.join(left)}")
    print(f"  accuracy                {early:.2%} against {last:.2%} ({100 * (early - last):+.2f})")
    print(f"  MACs                    {spent:.3f} of the last exit's alone")
    images = torch.cat([batch for batch, _ in evaluation_batches(case.test)])
    for size, batches in ((256, 2), (1, 100)):
        compare(case.net, alone, images, thresholds, size, batches)


def judged(net: SlicedNetwork, data: Examples) -> tuple[Tensor, Tensor]:
    """Each exit's confidence in each sample, and whether it is right, [exits, n]."""
    confidence, hits = [], []
    for images, labels in evaluation_batches(data):
        answers = list(anytime(net, images.contiguous(memory_format=torch.channels_last)))
        confidence.append(torch.stack([answer.confidence for answer in answers]))
        hits.append(torch.stack([answer.classes == labels for answer in answers]))
    return torch.cat(confidence, 1), torch.cat(hits, 1)


def cheapest(confidence: Tensor, hits: Tensor, costs: Sequence[float], full: float) -> list[float]:
    """The thresholds of the least budget that loses no more than the tolerance."""
    last = float(hits[-1].float().mean())
    for step in range(100):
        thresholds = fit_thresholds(confidence, costs, costs[0] + (full - costs[0]) * step / 100)
        taken = exits_taken(confidence, thresholds)
        if float(hits.gather(0, taken[None]).float().mean()) >= last - TOLERANCE:
            break
    return thresholds


def compare(
    net: SlicedNetwork,
    alone: SlicedNetwork,
    images: Tensor,
    thresholds: list[float],
    size: int,
    batches: int,
) -> None:
    laid_out = [
        batch.contiguous(memory_format=torch.channels_last)
        for batch in images.split(size)[:batches]
    ]

    def run(network: SlicedNetwork, given: list[float]) -> None:
        for batch in laid_out:
            classify(network, batch, given)

    seconds = medians(7, early=lambda: run(net, thresholds), last=lambda: run(alone, []))
    count = sum(map(len, laid_out))
    early, last = (1000 * seconds[name] / count for name in ("early", "last"))
    print(
        f"  in batches of {size:3}       {early:.3f} ms against {last:.3f} ms an image: "
        f"{last / early:.2f} times the throughput"
    )


def _batches(data: Examples) -> list[Tensor]:
    return [images for images, _ in evaluation_batches(data)]


def main() -> None:
    start = time.perf_counter()
    match sys.argv[1:]:
        case []:
            case = digits()
        case ["cifar10", data, weights]:
            case = cifar10(data, weights)
        case _:
            sys.exit(__doc__)
    print(f"trained in {time.perf_counter() - start:.0f} s, {torch.get_num_threads()} threads")
    measure(case)


if __name__ == "__main__":
    main()
