"""The Ray of one run, which has what the run needs and no more.

    python -P -m nestfl.launching.ray_head FOLDER

A process of its own, that starts Ray while the process of the simulation imports torch: Python runs
one thread at a time, and Ray's workers have as much to import.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from nestfl.launching.handshake import RAY, Head, read_head, read_request, write
from nestfl.launching.request import Request, Simulation

CLIENTS = "client_app.app"
"""What every worker imports as soon as it starts, while the server makes its plan."""
NICENESS = 5
"""How far Ray gives way to the process that checks the run: whoever mistyped something waits."""
PATIENCE = 120.0
"""Seconds that Ray has to start."""
PAUSE = 0.02


def main() -> None:
    """Start Ray, say where it is or why it is not, and hold it until this process is ended."""
    folder = Path(sys.argv[1])
    os.nice(NICENESS)
    try:
        head = Head(address=start_ray(cpus_of(read_request(folder))))
    except Exception as error:
        head = Head(error=f"{type(error).__name__}: {error}")
    write(folder, RAY, head)
    if head.error is None:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # Ray would wait for what ends, too
        signal.pause()


def cpus_of(request: Request) -> int | None:
    """Return the cores that Ray is to have; None is all of them."""
    return Simulation(1, request.cpus_per_client, workers=request.workers).cpus


def start_ray(cpus: int | None) -> str:
    """Start Ray's processes, for all cores if no number is given, and return its address.

    Their workers are there when work comes, and have imported all that it takes.

    Left out are its dashboard, which no run looks at and which listens at a port, and what would
    add machines: each is a Python that takes a second or more to start.
    """
    os.environ["RAY_preload_python_modules"] = CLIENTS  # noqa: SIM112  (its own spelling)
    import ray
    from ray._private import node, parameter

    parameter.RayParams = partial(  # type: ignore[misc, assignment]
        parameter.RayParams, no_monitor=True
    )
    node.Node.start_api_server = _start_nothing  # type: ignore[method-assign]
    ray.init(
        num_cpus=cpus, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False
    )
    return str(ray.get_runtime_context().gcs_address)


def join_ray(folder: Path) -> None:
    """Connect this process to the Ray that is started beside it."""
    import ray  # takes a second, in which Ray starts

    deadline = time.monotonic() + PATIENCE
    while not (folder / RAY).exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"Ray has not started within {PATIENCE:.0f} s")
        time.sleep(PAUSE)
    head = read_head(folder)
    if head.error is not None:
        raise RuntimeError(f"Ray did not start: {head.error}")
    ray.init(address=head.address, logging_level=logging.ERROR)


def _start_nothing(*_: Any, **__: Any) -> None:
    pass


if __name__ == "__main__":
    main()
