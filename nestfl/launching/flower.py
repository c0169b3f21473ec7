"""Starts Flower's simulation of the app in a directory, and ends all its processes."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nestfl import VARIABLE as APP_VARIABLE
from nestfl.bundle import BundleError, app_files
from nestfl.launching.app_copy import CACHE, cache_dir, kept_copy
from nestfl.launching.handshake import ANSWER, GO, REQUEST, Answer, Go, read_answer, write
from nestfl.launching.process_group import ProcessGroup
from nestfl.launching.ray_cluster import cluster
from nestfl.launching.request import Request
from plugins import PLACE as PLUGINS
from protocol.environment import MEMORY, private_ray
from server_app.record.files import LOG_FILE, MEMORY_FOLDER

DRIVER = [sys.executable, "-P", "-m", "nestfl.launching.driver"]
RAY_HEAD = [sys.executable, "-P", "-m", "nestfl.launching.ray_head"]
OUTPUT = "output"
"""Output of the process before it knows its log file."""
LAST_LINES = 5
PAUSE = 0.02


class LaunchError(RuntimeError):
    """Flower could not be started."""


def check_app(app_dir: Path) -> None:
    """Raise `LaunchError` unless a folder holds a Flower app."""
    try:
        app_files(app_dir)
    except BundleError as error:
        raise LaunchError(f"{error}; run nestfl from its checkout") from None


class Flower:
    """The process of a simulation (driver.py), with all processes that it starts."""

    def __init__(self, group: ProcessGroup, folder: Path) -> None:
        with (folder / OUTPUT).open("wb") as output:
            self.process = group.start([*DRIVER, str(folder)], output)
            if not cluster():
                group.start([*RAY_HEAD, str(folder)], None)
        self._group, self._folder = group, folder
        self._begun = False

    def answer(self, check: Callable[[], None]) -> Answer:
        """Wait for the result of its check; meanwhile `check` may raise to give up."""
        while not (self._folder / ANSWER).exists():
            if self.process.poll() is not None and not (self._folder / ANSWER).exists():
                said = (self._folder / OUTPUT).read_text(errors="replace").splitlines()
                raise LaunchError("\n".join(["Flower did not start:", *said[-LAST_LINES:]]))
            check()
            time.sleep(PAUSE)
        return read_answer(self._folder)

    def go(self, run_dir: Path, command: str, remembers: bool) -> None:
        """Let its run begin in a directory, which then also holds the clients' memory."""
        if remembers:  # workers have started already, so a link leads from the path that they know
            (run_dir / MEMORY_FOLDER).mkdir(exist_ok=True)
            (self._folder / MEMORY_FOLDER).symlink_to(run_dir / MEMORY_FOLDER)
        self._begun = True
        write(self._folder, GO, Go(str(run_dir), command, str(run_dir / LOG_FILE)))

    def end(self) -> None:
        """End all its processes; gently only while a run is under way."""
        self._group.stop(gently=self._begun and self.process.poll() is None)


# `flwr run` would use, or leave behind, a SuperLink shared by all runs, with another run's working
# directory, environment and code. So each run has a process with Flower's simulation engine in it.
# It starts at once, and Ray beside it: both import while the run is checked. All its processes, Ray
# too, are in one process group that can be ended as a whole.
@contextmanager
def flower(request: Request) -> Iterator[Flower]:
    """Start the process of a simulation; all its processes end with the `with` block."""
    with (
        _temporary_directory() as home,  # not in the checkout, which may be another user's
        _temporary_directory("/tmp") as ray,  # a short path, since Ray's sockets lie below it
    ):
        folder = Path(home)
        app = kept_copy(request.app_dir)
        write(folder, REQUEST, request)
        environment = _environment(folder, Path(ray), app)
        with ProcessGroup(environment, app, (folder, Path(ray))) as group:
            started = Flower(group, folder)
            try:
                yield started
            finally:
                started.end()


def _temporary_directory(folder: str | None = None) -> tempfile.TemporaryDirectory[str]:
    """Make a temporary directory in a folder; default: that of the system or of TMPDIR."""
    return tempfile.TemporaryDirectory(prefix="nestfl-", dir=folder, ignore_cleanup_errors=True)


def _environment(home: Path, ray: Path, app: Path) -> dict[str, str]:
    paths = [str(app), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join(paths),  # for the workers of Ray, which do not import nestfl
        APP_VARIABLE: str(app),
        "PYTHONUNBUFFERED": "1",
        PLUGINS: str(home),
        CACHE: str(cache_dir().absolute()),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    }
    environment.setdefault(MEMORY, str(home / MEMORY_FOLDER))
    if not cluster():  # otherwise Ray would join any cluster on this machine
        environment["RAY_TMPDIR"] = str(ray)
        environment |= private_ray()
    return environment
