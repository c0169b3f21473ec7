"""Starts, finds and kills the processes of a fault, and reads their output."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from signal import SIGKILL, Signals

APP = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
NOBODY = 65534
AS_NOBODY = (
    *f"setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups".split(),
    *["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"],
)
"""Prefix that runs a command as another user who may read all: Python may be in root's home."""
PATIENCE = float(os.environ.get("FAULTS_PATIENCE", "1"))
"""Factor of all waiting times, for a busy machine."""
PR_SET_CHILD_SUBREAPER = 36
ANSI_CODE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Process:
    """A command in a session of its own; its output goes to a file."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        cwd: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.log = log
        path = os.pathsep.join([str(BIN), os.environ["PATH"]])
        with log.open("wb") as output:
            self.popen = subprocess.Popen(
                command,
                cwd=cwd,
                env={**os.environ, "PATH": path, "PYTHONPATH": str(APP), **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def ended(self) -> bool:
        return self.popen.poll() is not None

    @property
    def code(self) -> int:
        assert self.popen.returncode is not None
        return self.popen.returncode

    def output(self) -> str:
        return ANSI_CODE.sub("", self.log.read_text(errors="replace"))

    def until(self, pattern: str, seconds: float = 150.0) -> None:
        """Wait for a line of its output; the process must not end before."""

        def seen() -> bool:
            ended = self.ended
            if re.search(pattern, self.output()):
                return True
            assert not ended, f"exit {self.code} before /{pattern}/: {last_line(self.output())}"
            return False

        wait_until(seen, f"/{pattern}/ in {self.log.name}", seconds, pause=0.02)

    def end(self, seconds: float = 180.0) -> int:
        """Wait for its end and return its exit code."""
        wait_until(lambda: self.ended, f"the end of {self.log.stem}", seconds)
        return self.code

    def send(self, number: Signals) -> None:
        """Send a signal to the process only."""
        self.popen.send_signal(number)

    def send_to_group(self, number: Signals) -> None:
        """Send a signal to the process and to all that it has started in its own group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


def last_line(text: str) -> str:
    return ([line.strip() for line in text.splitlines() if line.strip()] or ["nothing"])[-1]


def wait_until(
    holds: Callable[[], bool], what: str, seconds: float = 120.0, pause: float = 0.1
) -> None:
    end = time.monotonic() + seconds * PATIENCE
    while not holds():
        assert time.monotonic() < end, f"waited {seconds * PATIENCE:.0f} s for {what}"
        time.sleep(pause)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def adopt_orphans() -> None:
    """Make this process the parent of all processes below it that lose theirs."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_until(wanted: int, seconds: float) -> bool:
    """Wait for a child to end and reap the others, as init would; return False on timeout.

    Flower's processes end when their parent is gone, and an unreaped parent is not gone.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended = os.waitpid(-1, os.WNOHANG)[0]
        if ended == wanted:
            return True
        if not ended:
            time.sleep(0.05)
    return False


def running(root: int) -> dict[int, str]:
    """Return the command lines of a process's descendants, without zombies."""
    parents, commands = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            command = (entry / "cmdline").read_bytes()
        except OSError:  # it has ended in the meantime
            continue
        if state != "Z":
            parents[int(entry.name)] = int(parent)
            commands[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace")

    def descends(pid: int) -> bool:
        while pid in parents and pid != root:
            pid = parents[pid]
        return pid == root

    return {pid: commands[pid] for pid in parents if pid != root and descends(pid)}


def of_this_fault() -> dict[int, str]:
    """Return all processes that this fault has started; `__main__` has adopted the orphans."""
    return {pid: command for pid, command in running(os.getppid()).items() if pid != os.getpid()}


def find(text: str, seconds: float = 60.0) -> int:
    """Return the process of this fault whose command line holds a text."""
    found: list[int] = []

    def there() -> bool:
        found[:] = [pid for pid, command in of_this_fault().items() if text in command]
        return bool(found)

    wait_until(there, f"a process {text}", seconds)
    return found[0]


def kill_all(root: int) -> None:
    """Kill all descendants of a process, including those that start meanwhile."""
    while left := running(root):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, SIGKILL)
        time.sleep(0.05)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
