"""Runs the app on the local engine: the ServerApp and all clients in this process."""

from __future__ import annotations

import logging
import os
import signal
from bdb import BdbQuit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import plugins
from nestfl.launching.launched_run import Run
from nestfl.launching.request import Simulation
from nestfl.launching.stopping import Stopped, stop_request
from nestfl.local_engine import LocalGrid
from nestfl.watching.progress import Follower, Lines, Silence
from protocol.environment import MEMORY
from server_app import app as server
from server_app.config.composing import Config
from server_app.record.files import MEMORY_FOLDER, PROGRESS_FILE

log = logging.getLogger("flwr")  # the run's log file gets its lines


@dataclass(kw_only=True)
class LocalRun(Run):
    """A run of the app in this process; it prints a line per round and leaves the terminal free."""

    config: Config
    simulation: Simulation

    def run(self) -> None:
        (self.run_dir / PROGRESS_FILE).unlink(missing_ok=True)
        follower = Follower(self.run_dir)
        self.state = follower.state
        display = Silence() if self.quiet else Lines(self.console)
        # At once is safe: a run's files are complete whenever its process is killed.
        with (
            stop_request(at_once=True),
            _logged_to(self.log, lambda: follower.step(display)),
            _memory_in(self.run_dir.absolute() / MEMORY_FOLDER),
        ):
            grid = LocalGrid(self.simulation.nodes, self.simulation.cpus_per_client)
            try:
                server.run(grid, self.config, self.run_dir, self.command)
            except (KeyboardInterrupt, BdbQuit):  # leaving the debugger ends the run
                raise Stopped(signal.SIGINT) from None
            except Exception as error:
                log.exception("The ServerApp raised an exception")
                where = plugins.where_in_plugins(error)
                place = f" ({where})" if where else ""
                self.state.reason = f"{type(error).__name__}: {error}{place}"


class _Call(logging.Handler):
    """Calls a function after each log record, such as the end of a round."""

    def __init__(self, function: Callable[[], None]) -> None:
        super().__init__()
        self._function = function

    def emit(self, record: logging.LogRecord) -> None:
        self._function()


@contextmanager
def _memory_in(folder: Path) -> Iterator[None]:
    """Keep clients' memory in a folder, unless the environment names another."""
    named = MEMORY in os.environ
    os.environ.setdefault(MEMORY, str(folder))
    try:
        yield
    finally:
        if not named:
            del os.environ[MEMORY]


@contextmanager
def _logged_to(file: Path, after_each: Callable[[], None]) -> Iterator[None]:
    """Within the block, write Flower's log to a file instead of the terminal."""
    written = logging.FileHandler(file, encoding="utf-8", delay=True)
    written.setFormatter(logging.Formatter("%(levelname)-8s: %(message)s"))
    written.setLevel(logging.INFO)
    before, log.handlers = log.handlers, [written, _Call(after_each)]
    try:
        yield
    finally:
        log.handlers = before
        written.close()
