"""`flower-superexec` of a device: takes the SuperNode's tasks and starts `client_app` for them.

    python -m nestfl.guarded.launcher ADDRESS PARENT OWN_CODE < SECRET

Flower's own would start any kind of task, and show its token to all who can list processes.
"""

from __future__ import annotations

import subprocess
import sys

from flwr.supercore.constant import TaskType
from flwr.supercore.superexec import run_superexec
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor

from nestfl.guarded.flower import replace

CLIENT_APP = [sys.executable, "-P", "-m", "nestfl.guarded.client_app"]


class ClientAppsOnly(SubprocessExecutor):
    """Starts client apps behind their gate, and nothing else."""

    def __init__(self, own: str) -> None:
        self.own = own

    def get_eligible_capacity(
        self, supported_task_types: set[TaskType], **_: object
    ) -> tuple[set[TaskType], set[str]]:
        """Ask for client apps alone."""
        return {TaskType.CLIENT_APP}, set()

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start one, with its token where no other user reads it."""
        if spec.task_type != TaskType.CLIENT_APP:
            return LaunchResult.failed(f"this device runs no {spec.task_type}")
        command = [*CLIENT_APP, spec.runtime_api_address, str(spec.parent_pid), self.own]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
        assert process.stdin is not None
        with process.stdin as token:
            token.write(spec.token)
        return LaunchResult.accepted()


def main() -> None:
    """Take tasks until the SuperNode ends."""
    address, parent, own = sys.argv[1:]
    replace(run_superexec, "get_executor", lambda *_, **__: ClientAppsOnly(own))
    run_superexec.run_superexec(
        runtime_api_address=address,
        insecure=True,
        superexec_auth_secret=sys.stdin.buffer.read(),
        parent_pid=int(parent),
    )


if __name__ == "__main__":
    main()
