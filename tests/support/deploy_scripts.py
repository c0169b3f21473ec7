"""Runs the scripts of deploy/ in a folder of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


class Scripts:
    """Runs the scripts in a folder of their own."""

    def __init__(self, state: Path) -> None:
        self.state = state
        own = {"STATE": str(state), "LINK_HOST": "127.0.0.1", "NO_PROXY": "*"}
        python = str(Path(sys.executable).parent)
        self.environment = os.environ | own | {"PATH": f"{python}:{os.environ['PATH']}"}
        self.started: list[subprocess.Popen[str]] = []

    def start(self, script: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [DEPLOY / script, *arguments],
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def stop(self) -> None:
        """End the processes that a failed test has left."""
        for process in self.started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def run(self, script: str, *arguments: str, **environment: str) -> tuple[int, str]:
        """Return the exit code and the output; of a failed script only the errors."""
        process = self.start(script, *arguments, **environment)
        out, err = process.communicate(timeout=60)
        return process.returncode, err if process.returncode else out

    def files(self) -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in self.state.iterdir() if file.is_file()}
