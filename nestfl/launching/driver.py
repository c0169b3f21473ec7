"""The process of a simulation: it checks the run while Ray starts, and begins when told.

    python -P -m nestfl.launching.driver FOLDER

It runs Flower's simulation engine in its own process, without a SuperLink or ports of Flower's. The
app's server and clients are imported from the working directory, which is a copy of the app.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import TYPE_CHECKING

import plugins
from nestfl.launching.handshake import ANSWER, GO, Answer, Go, read_go, read_request, write
from nestfl.launching.ray_cluster import cluster, join_cluster
from nestfl.launching.ray_head import join_ray
from nestfl.launching.request import Request, Simulation, choose

if TYPE_CHECKING:
    from server_app.start_checks import Checked

CLIENT_APP = "client_app.app:app"
PAUSE = 0.02
"""Seconds between two looks for the permission to begin."""

log = logging.getLogger("flwr")


class Check(Thread):
    """Checks the run while Ray starts, and writes the answer."""

    def __init__(self, folder: Path, request: Request) -> None:
        super().__init__()
        self._folder, self._request = folder, request
        self.found: tuple[Checked, Simulation] | None = None

    def run(self) -> None:
        try:
            checked, simulation, choice = choose(self._request)
        except (Exception, SystemExit) as error:  # a user's own code may raise any error
            write(self._folder, ANSWER, Answer(error=plugins.told(error)))
        else:
            plugins.write(self._folder)  # clients find them there
            self.found = checked, simulation
            write(self._folder, ANSWER, Answer(choice=choice))


def main() -> None:
    """Check the run, answer, wait for the permission to begin, and run; errors go to the log."""
    folder = Path(sys.argv[1])
    request = read_request(folder)
    check = Check(folder, request)
    check.start()
    problem = _join_ray(folder)
    check.join()
    if check.found is None:
        sys.exit(2)
    go = _awaited(folder)
    _log_to(go.log)
    code = 0
    try:
        if problem is not None:
            raise problem
        if cluster():
            join_cluster(Path.cwd(), folder)
        simulate(*check.found, go)
    except Exception:
        log.exception("Simulation raised an exception")  # nestfl/launching/failure.py finds this
        code = 1
    logging.shutdown()
    os._exit(code)  # a thread of Flower's or Ray's may wait for a client that never answers


def simulate(checked: Checked, simulation: Simulation, go: Go) -> None:
    """Run the ServerApp, with clients in Ray's workers, until the run has ended."""
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation.run_simulation import _run_simulation
    from flwr.supercore.telemetry import EventType

    from server_app.app import run

    app, ended = ServerApp(), Queue[Exception | None]()

    @app.main()
    def serve(grid: Grid, context: Context) -> None:
        ended.put(_raised(lambda: run(grid, checked.config, Path(go.run_dir), go.command)))

    def engine() -> None:
        # `flwr.simulation.run_simulation` does the same, but takes no directory for clients.
        _run_simulation(
            simulation.nodes,
            EventType.PYTHON_API_RUN_SIMULATION_LEAVE,
            server_app=app,
            client_app_attr=CLIENT_APP,
            app_dir=os.getcwd(),
            backend_config=simulation.backend(),  # type: ignore[arg-type]
            is_app=True,
        )

    # Closing it would wait for workers that do not fit the cluster, and for clients that hang.
    Thread(target=lambda: ended.put(_raised(engine)), daemon=True).start()
    if (error := ended.get()) is not None:
        raise error


def _raised(work: Callable[[], object]) -> Exception | None:
    """Call a function and return the exception that it raises; None without one."""
    try:
        work()
    except Exception as error:
        return error
    return None


def _join_ray(folder: Path) -> Exception | None:
    """Join Ray before the run is checked; return the error for the run's log, if any."""
    try:
        if not cluster():
            join_ray(folder)
        import flwr.simulation.run_simulation  # noqa: F401  (a second, while the check goes on)
    except Exception as error:
        return error
    return None


def _awaited(folder: Path) -> Go:
    while not (folder / GO).exists():
        time.sleep(PAUSE)
    return read_go(folder)


def _log_to(file: str) -> None:
    """Send all further output of this process and its clients to a file."""
    opened = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(opened, stream.fileno())
    os.close(opened)


if __name__ == "__main__":
    main()
