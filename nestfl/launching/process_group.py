"""Starts processes in one group and ends them together."""

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
"""Shell script that ends its process group, and removes folders, once another process is gone."""


class ProcessGroup:
    """Starts processes in one process group; all end with the `with` block.

    The terminal's Ctrl-C does not reach the group: its starter decides when it ends. A guard
    process leads the group. If the starter is killed, the guard ends the group and removes its
    folders.
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
        """Start a process of the group, with additions to its environment."""
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
        """Ask all processes of the group to end, and kill those that do not.

        With `gently=False` they are killed at once, since they have no work left to finish.
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
            process.poll()  # an ended process remains until it is waited for
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
    """Return the processes of a group that still run, without zombies."""
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
            except OSError:  # it has ended in the meantime
                continue
            state, _, group = stat.rpartition(")")[2].split()[:3]
            found.append((int(entry), int(group), state))
    return found


def _signal(group: int, request: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # macOS refuses if only zombies are left
        os.killpg(group, request)
