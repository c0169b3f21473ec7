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
    """
    os.environ["RAY_preload_python_modules"] = CLIENTS  # noqa: SIM112  (its own spelling)
    import ray
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    class Head(Node):
        """What `ray start --head` starts, without what no run looks at.

        That is the dashboard, which listens at a port; what would add machines; and what sends logs
        on. Each is a Python that takes a second or more to start.
        """

        def start_api_server(self, **_: Any) -> None:
            pass

    asked = RayParams(num_cpus=cpus, no_monitor=True, include_log_monitor=False)  # type: ignore[arg-type]
    head = Head(asked, head=True, shutdown_at_exit=False, spawn_reaper=True)
    # The first who joins lets workers start, whoever they will work for.
    ray.init(address=head.gcs_address, logging_level=logging.ERROR, log_to_driver=False)
    return str(head.gcs_address)


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


if __name__ == "__main__":
    main()
