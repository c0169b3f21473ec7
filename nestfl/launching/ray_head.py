"""Starts the Ray of one run, with only the parts that the run needs.

    python -P -m nestfl.launching.ray_head FOLDER

It is a process of its own that starts Ray while the simulation's process imports torch: Python runs
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
"""Module that every worker imports at its start, while the server makes its plan."""
NICENESS = 5
"""Niceness of Ray's start-up, so that the configuration check finishes first."""
PATIENCE = 120.0
"""Seconds that Ray has to start."""
PAUSE = 0.02


def main() -> None:
    """Start Ray, report its address or the error, and hold it until this process is ended."""
    folder = Path(sys.argv[1])
    os.nice(NICENESS)
    try:
        head = Head(address=start_ray(cpus_of(read_request(folder))))
    except Exception as error:
        head = Head(error=f"{type(error).__name__}: {error}")
    write(folder, RAY, head)
    if head.error is None:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # Ray would wait for ending processes
        signal.pause()


def cpus_of(request: Request) -> int | None:
    """Return the cores for Ray; None for all cores."""
    return Simulation(1, request.cpus_per_client, workers=request.workers).cpus


def start_ray(cpus: int | None) -> str:
    """Start Ray's processes, for all cores if no number is given, and return Ray's address.

    Workers start at once and import the app, so that they are ready when work comes.
    """
    os.environ["RAY_preload_python_modules"] = CLIENTS  # noqa: SIM112  (its own spelling)
    import ray
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    class Head(Node):
        """`ray start --head`, without the parts that no run uses.

        These are the dashboard, which listens at a port, the autoscaler, and the log monitor. Each
        is a Python process that takes a second or more to start.
        """

        def start_api_server(self, **_: Any) -> None:
            pass

    asked = RayParams(
        num_cpus=cpus,
        no_monitor=True,
        include_log_monitor=False,  # type: ignore[arg-type]  # Ray reads it as true or false
    )
    head = Head(asked, head=True, shutdown_at_exit=False, spawn_reaper=True)
    # Workers start when the first process joins Ray, and serve any later one.
    ray.init(address=head.gcs_address, logging_level=logging.ERROR, log_to_driver=False)
    return str(head.gcs_address)


def join_ray(folder: Path) -> None:
    """Connect this process to the Ray that starts beside it."""
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
