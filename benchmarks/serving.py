"""Compares a tree of three processes with one central server of the full network, under load.

    python -m benchmarks.serving                                  # a minute of each
    python -m benchmarks.serving --minutes 10 --kill-edge         # kills -9 and restarts the edge

The load is mixed: some clients send the next request after an answer, with batches of all sizes;
others send one sample at a fixed rate. A small run on digits is trained unless one is given.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import torch

from data.clients import global_test
from data.examples import ImageData
from inference.serving.node_metrics import process_memory
from inference.serving.wire import DEGRADED, LIMITED, MEDIA_TYPE, Answers, pack
from nestfl.commands.serving_tree import Tree
from server_app.trained_level import TrainedRun

SIZES = (1, 1, 1, 2, 4, 16)
"""Samples of a request of the closed loop; one of these is drawn."""
DOWN = 10.0
"""Seconds that the edge is down."""


@dataclass
class Tally:
    """Counts of requests by their result."""

    latencies: list[float] = field(default_factory=list)
    answered: Counter[str] = field(default_factory=Counter)
    samples: int = 0
    right: int = 0
    degraded: int = 0
    limited: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, answers: Answers, labels: torch.Tensor, seconds: float) -> None:
        self.latencies.append(seconds)
        self.samples += len(labels)
        self.right += int((answers.classes == labels).sum())
        self.answered.update(answers.nodes)
        self.degraded += int((answers.flags & DEGRADED > 0).sum())
        self.limited += int((answers.flags & LIMITED > 0).sum())

    def line(self, seconds: float) -> str:
        ordered = sorted(self.latencies) or [0.0]
        at = {
            p: 1000 * ordered[min(len(ordered) - 1, len(ordered) * p // 100)] for p in (50, 90, 99)
        }
        count = max(1, self.samples)
        shares = ", ".join(f"{name} {n / count:.1%}" for name, n in sorted(self.answered.items()))
        return (
            f"{len(self.latencies)} requests, {self.samples / seconds:.0f} samples/s, "
            f"p50 {at[50]:.1f} p90 {at[90]:.1f} p99 {at[99]:.1f} ms, "
            f"accuracy {self.right / count:.2%}, answered by {shares}, "
            f"degraded {self.degraded / count:.1%}, limited {self.limited / count:.1%}, "
            f"errors {dict(self.errors) or 'none'}"
        )


class Load:
    """Sends requests to a node for a while, and counts them under the current phase."""

    def __init__(self, tree: Tree, data: ImageData, workers: int, rate: float) -> None:
        self.url, self.data, self.workers, self.rate = (
            tree.url(tree.entrances[0]),
            data,
            workers,
            rate,
        )
        self.phase, self.tallies = "all", dict[str, Tally]()
        self.seconds: dict[str, float] = {}
        self.memory: list[dict[str, int]] = []
        self.client = httpx.AsyncClient(
            verify=ssl.create_default_context(cafile=tree.authority),
            headers={"Authorization": f"Bearer {tree.token}", "Content-Type": MEDIA_TYPE},
            timeout=60,
            limits=httpx.Limits(max_connections=200),
            trust_env=False,
        )
        self.chance = random.Random(0)

    async def ask(self, size: int) -> None:
        rows = torch.tensor([self.chance.randrange(len(self.data)) for _ in range(size)])
        tally = self.tallies.setdefault(self.phase, Tally())
        began = time.perf_counter()
        try:
            body = pack((self.data.images[rows],))
            response = await self.client.post(f"{self.url}/v1/predict", content=body)
            if response.status_code != 200:
                tally.errors[str(response.status_code)] += 1
                return
            answers = Answers.unpack(response.content, size)
        except httpx.HTTPError as error:
            tally.errors[type(error).__name__] += 1
            return
        tally.add(answers, self.data.labels[rows], time.perf_counter() - began)

    async def closed(self, end: float) -> None:
        """Send a request, and the next one after its answer."""
        while time.monotonic() < end:
            await self.ask(self.chance.choice(SIZES))

    async def open(self, end: float) -> None:
        """Send requests at a rate, whether or not the answers come."""
        asked: set[asyncio.Task[None]] = set()
        while time.monotonic() < end:
            task = asyncio.create_task(self.ask(1))
            asked.add(task)
            task.add_done_callback(asked.discard)
            await asyncio.sleep(self.chance.expovariate(self.rate))
        await asyncio.gather(*asked)

    async def run(self, seconds: float, tree: Tree, kill_edge: bool) -> None:
        end = time.monotonic() + seconds
        loads = [self.closed(end) for _ in range(self.workers)]
        if self.rate:
            loads.append(self.open(end))
        if kill_edge:
            loads.append(self.kill_edge(tree, seconds))
        watching = asyncio.create_task(self.watch(seconds, tree))
        await asyncio.gather(*loads)
        await watching
        self.seconds.setdefault("all", seconds)
        await self.client.aclose()

    async def watch(self, seconds: float, tree: Tree) -> None:
        """Record the nodes' memory ten times."""
        for _ in range(10):
            self.memory.append(memories(tree))
            await asyncio.sleep(seconds / 10)

    async def kill_edge(self, tree: Tree, seconds: float) -> None:
        """Kill the edge in the middle, and start it again."""
        self.phase = "before"
        await asyncio.sleep(seconds / 2)
        self.phase = "edge down"
        tree.processes["edge"].send_signal(signal.SIGKILL)
        tree.processes["edge"].wait()
        began = time.monotonic()
        await asyncio.sleep(DOWN)
        tree.start("edge")
        await asyncio.to_thread(tree.wait_for, "edge")
        self.seconds |= {"before": seconds / 2, "edge down": time.monotonic() - began}
        self.phase = "after"
        self.seconds["after"] = seconds / 2 - self.seconds["edge down"]


def measure(parts: Path, data: ImageData, options: argparse.Namespace, kill_edge: bool) -> None:
    """Serve the parts of a folder, put them under load, and print the results."""
    tree = Tree(parts, port=options.port)
    try:
        tree.start_all(*(["--half"] if options.half else []))
        asyncio.run(Load(tree, data, options.workers, options.rate).run(5, tree, False))  # warm up
        load = Load(tree, data, options.workers, options.rate)
        began = time.monotonic()
        asyncio.run(load.run(options.seconds, tree, kill_edge))
        took = time.monotonic() - began
        for phase, tally in load.tallies.items():
            print(f"{parts.name}, {phase}: {tally.line(load.seconds.get(phase, took))}")
        load.memory.append(memories(tree))
        for name in tree.parts:
            memory = " ".join(f"{each[name] / 1e6:.0f}" for each in load.memory)
            print(f"{parts.name}, {name}: memory in MB {memory}; {passed_on(tree, name)}")
    finally:
        tree.stop()


def memories(tree: Tree) -> dict[str, int]:
    running = {name: each.pid for name, each in tree.processes.items() if each.poll() is None}
    return {name: process_memory(running[name]) if name in running else 0 for name in tree.parts}


def passed_on(tree: Tree, name: str) -> str:
    """Return the samples that a node has passed on since its start, and their size, as text."""
    context = ssl.create_default_context(cafile=tree.authority)
    headers = {"Authorization": f"Bearer {tree.token}"}
    with httpx.Client(verify=context, headers=headers, trust_env=False) as client:
        text = client.get(f"{tree.url(name)}/metrics").text
    lines = [line.split() for line in text.splitlines() if line[0] != "#"]
    numbers = {key: float(value) for key, value in lines}
    samples, sent = numbers["nestfl_forwarded_total"], numbers["nestfl_sent_bytes"]
    return f"{samples:.0f} samples passed on, {sent / max(1, samples):.0f} bytes each"


def trained(folder: Path) -> Path:
    """Train a small run."""
    run = folder / "run"
    overrides = ("engine=local", "strategy=depthfl", "fleet=small", "rounds=3", "train.epochs=2")
    nestfl("run", *overrides, "train.lr=0.05", "--run-dir", str(run), "--quiet")
    return run


def nestfl(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "nestfl", *arguments], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--run", type=Path, help="a trained run with several exits")
    parser.add_argument("--exits", default="1,2,4", help="of device, edge and cloud")
    parser.add_argument("--forward", default="0.4,0.5", help="shares that device and edge pass on")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--minutes", type=float, help="instead of --seconds")
    parser.add_argument("--workers", type=int, default=4, help="of the closed loop")
    parser.add_argument("--rate", type=float, default=5, help="requests a second of the open loop")
    parser.add_argument("--kill-edge", action="store_true")
    parser.add_argument("--half", action="store_true", help="send features with 16 bits each")
    parser.add_argument("--no-central", action="store_true", help="only the tree")
    parser.add_argument("--port", type=int, default=18443)
    options = parser.parse_args()
    options.seconds = 60 * options.minutes if options.minutes else options.seconds
    with tempfile.TemporaryDirectory(prefix="nestfl-serving-") as name:
        folder = Path(name)
        run = options.run or trained(folder)
        split = ("split", str(run), "--output")
        tree, central = folder / "tree", folder / "central"
        nestfl(*split, str(tree), "--exits", options.exits, "--forward", options.forward)
        data = global_test(TrainedRun(run).whole().dataset)
        assert isinstance(data, ImageData)
        measure(tree, data, options, options.kill_edge)
        if not options.no_central:
            nestfl(*split, str(central), "--exits", options.exits.split(",")[-1])
            options.seconds = min(options.seconds, 60)
            measure(central, data, options, kill_edge=False)


if __name__ == "__main__":
    main()
