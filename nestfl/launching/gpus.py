"""Shares this machine's GPUs among simulated clients.

Ray hides all GPUs from a client that takes no share of one, and lets as many clients use a GPU as
shares fit into it, whatever memory they need. So the share follows from the memory of training.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.filesize import decimal

from nestfl.launching.ray_cluster import cluster

if TYPE_CHECKING:  # not for --help
    from models import Task
    from server_app.config.composing import Config

CUDA_CONTEXT = 1 << 30
"""Bytes that a process takes of a GPU besides its tensors: its context and libraries."""
ROOM = 0.9
"""Share of the free memory that is given to clients; the rest is lost between tensors."""
BYTES = 4
"""Bytes of a number; values that are computed in fewer bytes are kept in as many."""
COPIES = 5
"""Numbers for each parameter: received, trained, its gradient, two states of the optimiser."""
LIVE_OUTPUTS = 4
"""Outputs, each as large as the largest one, that an evaluation holds at once."""
MOST_CLIENTS = 16
"""Most clients at once on a GPU; more would only wait for each other."""
RAY_UNITS = 10_000
"""Ray's smallest share of a GPU is 1 / RAY_UNITS."""

log = logging.getLogger("flwr")

ASK_TORCH = """
import json, torch
count = torch.cuda.device_count()
print(json.dumps([torch.cuda.mem_get_info(gpu)[0] for gpu in range(count)]))
"""


def free_memory_of_gpus() -> list[int]:
    """Return the free bytes of each GPU that processes started here may use; none without CUDA."""
    import torch

    if not torch.cuda.is_available():
        return []
    # In another process, since this one would keep the CUDA context for the whole run.
    asked = subprocess.run([sys.executable, "-c", ASK_TORCH], capture_output=True, text=True)
    if asked.returncode != 0:
        raise OSError(f"cannot ask for the GPUs' memory: {asked.stderr.strip().splitlines()[-1:]}")
    free: list[int] = json.loads(asked.stdout)
    return free


def clients_per_gpu(free: Sequence[int], needed: int, at_once: int) -> int:
    """Return the number of clients that fit on each GPU, with `needed` bytes each.

    At most `at_once` clients run on all GPUs. The server, which evaluates, needs as much memory as
    a client on one of them. The result is 0 if no client fits.
    """
    if not free:
        return 0
    fitting = int(ROOM * min(free)) // needed - 1
    spread = -(-at_once // len(free))
    return max(0, min(fitting, spread, MOST_CLIENTS))


def share_of_a_gpu(clients: int) -> float:
    """Return each client's share of a GPU, such that Ray places at most `clients` on it."""
    return RAY_UNITS // clients / RAY_UNITS if clients else 0.0


def default_share(
    device: str, find_gpus: Callable[[], list[int]], memory: Callable[[], int], at_once: int
) -> float:
    """Return each client's default share of a GPU; 0 without GPUs, or if none is wanted."""
    # A Ray cluster has other GPUs than this machine.
    if device not in ("auto", "cuda") or cluster() or not (gpus := find_gpus()):
        return 0.0
    needed = memory()
    share = share_of_a_gpu(clients_per_gpu(gpus, needed, at_once))
    if not share:
        problem = (
            f"a client takes about {decimal(needed)} of a GPU, the server as much, and only "
            f"{decimal(min(gpus))} are free"
        )
        if device == "cuda":
            raise ValueError(f"{problem}: give train.device=cpu, or --gpus-per-client yourself")
        log.warning("%s: clients train on the CPU; --gpus-per-client forces it", problem)
    return share


def cores() -> int:
    """Return the number of cores that this process may use."""
    has_affinity = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1


def device_of(kind: str, share: float) -> str:
    """Return the device for a share of a GPU; for a share of 0 it is the CPU, as Ray hides CUDA."""
    if share and kind in ("auto", "cuda"):
        return f"cuda ({share:g} of a GPU each)"
    if kind != "auto":
        return kind
    if sys.platform != "darwin":
        return "cpu"
    import torch

    return "mps" if torch.backends.mps.is_available() else "cpu"


def training_memory(config: Config) -> int:
    """Return the bytes of a GPU that a client takes to train and evaluate the full network.

    No slice takes more, and the full network needs no plan, whose search takes seconds.
    """
    from strategies.levels.cost import cost
    from training.testing import largest_batch

    task = config.task
    trained = cost(task, task.whole, config.train.batch_size)
    evaluated = LIVE_OUTPUTS * largest_batch(task.answers) * _largest_output(task)
    activations = max(2 * trained.memory, evaluated)  # each kept activation has a gradient
    return CUDA_CONTEXT + COPIES * BYTES * trained.parameters + activations


def _largest_output(task: Task) -> int:
    """Return the bytes of the largest layer output of the full network for one input."""
    import torch
    from torch import Tensor

    from strategies.levels.cost import NORMABLE

    net, sizes = task.build(task.whole, device="meta"), [0]

    def note(module: object, inputs: object, output: object) -> None:
        if isinstance(output, Tensor):
            sizes.append(BYTES * output.numel() // NORMABLE)

    for module in net.modules():
        module.register_forward_hook(note)
    with torch.no_grad():
        net(task.input(NORMABLE, device="meta"))
    return max(sizes)
