"""Runs of `nestfl run` in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

from server_app.record.checkpoint import load

NESTFL = [sys.executable, "-c", "from nestfl.commands import app; app()"]
SMOKE = ["run", "experiment=smoke", "rounds=3"]


def nestfl(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*NESTFL, *arguments], capture_output=True, text=True, timeout=580,
                          env=os.environ | environment)  # fmt: skip


def weights(run: Path) -> dict[str, torch.Tensor]:
    return dict(load(run).tensors)


def assert_same_weights(first: Path, second: Path) -> None:
    one, other = weights(first), weights(second)
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


def descendants(ancestor: int) -> list[tuple[int, str]]:
    """Return the processes below one, as (pid, command); a child's pid may be the smaller."""
    # -ww: with COLUMNS set, ps would cut the commands off there.
    listing = subprocess.run(["ps", "-wweo", "pid=,ppid=,args="], capture_output=True, text=True)
    children: dict[int, list[tuple[int, str]]] = {}
    for line in listing.stdout.splitlines():
        pid, parent, *command = line.split(None, 2)
        children.setdefault(int(parent), []).append((int(pid), " ".join(command)))
    found, left = [], [ancestor]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += [pid for pid, _ in below]
    return found
