"""A group of processes that is started together and ends together."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO

PATIENCE = 5.0
"""Seconds that a process has to end by itself before it is killed."""

GUARD = """
starter=$1; shift
while kill -0 "$starter" 2>/dev/null; do sleep 1; done
trap "" TERM; kill -TERM 0; sleep 5; rm -rf -- "$@"; kill -KILL 0
"""
"""Ends its process group, itself too, and removes folders, when another process is gone."""


class ProcessGroup:
    """Starts processes in one process group; nothing of it outlives the `with` block.

    The terminal's Ctrl-C does not reach the group: who started it decides when it ends. A guard
    leads the group, and ends it where that one is killed and cannot, with the folders that are
    the group's own.
    """

    def __init__(self, env: Mapping[str, str], cwd: Path, folders: Sequence[Path] = ()) -> None:
        self._env = env
        self._cwd = cwd
        self._folders = folders
        self._started: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        command: Sequence[str],
        output: IO[bytes] | None,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a process of the group, with something more in its environment."""
        process = subprocess.Popen(
            command,
            env={**self._env, **(environment or {})},
            cwd=self._cwd,
            stdin=subprocess.DEVNULL,
            stdout=output or subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            process_group=self._started[0].pid if self._started else 0,
        )
        self._started.append(process)
        return process

    def stop(self, gently: bool = True) -> None:
        """Ask all processes, and all that they have started, to end; kill those that do not.

        Where nobody has anything left to do, they are killed at once.
        """
        if not self._started:
            return
        group = self._started[0].pid
        for request in (signal.SIGTERM, signal.SIGKILL)[0 if gently else 1 :]:
            _signal(group, request)
            deadline = time.monotonic() + PATIENCE
            while self._is_alive(group) and time.monotonic() < deadline:
                time.sleep(0.1)
        self._started.clear()

    def _is_alive(self, group: int) -> bool:
        for process in self._started:
            process.poll()  # a process that has ended is there until it is waited for
        return bool(members(group))

    def __enter__(self) -> ProcessGroup:
        watched = [str(os.getpid()), *map(str, self._folders)]
        self.start(["/bin/sh", "-c", GUARD, "guard", *watched], output=None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def members(group: int) -> list[int]:
    """Return the processes of a group that still run; zombies do not."""
    return [pid for pid, its_group, state in _processes() if its_group == group and state != "Z"]


def _processes() -> list[tuple[int, int, str]]:
    """Return each process with its group and the letter of its state."""
    if not Path("/proc/self/stat").exists():
        listing = subprocess.run(
            ["ps", "-A", "-o", "pid=,pgid=,stat="], capture_output=True, text=True, check=True
        )
        rows = [line.split() for line in listing.stdout.splitlines()]
        return [(int(pid), int(group), state[0]) for pid, group, state in rows]
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path("/proc", entry, "stat").read_text()
            except OSError:  # it has just ended
                continue
            state, _, group = stat.rpartition(")")[2].split()[:3]
            found.append((int(entry), int(group), state))
    return found


def _signal(group: int, request: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # macOS refuses if only zombies are left
        os.killpg(group, request)
