"""`flower-superexec` of a device: takes the SuperNode's tasks and starts `client_app` for them.

    python -m nestfl.guarded.launcher PORT PARENT OWN_CODE NODE_CONFIG < SECRET

Flower's own superexec would start any kind of task, and show its token in the list of processes.
"""

from __future__ import annotations

import subprocess
import sys

from flwr.supercore.constant import TaskType
from flwr.supercore.superexec import run_superexec
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor

from nestfl import leave_app
from nestfl.guarded.own_user import LOOPBACK, is_own
from nestfl.guarded.replacing import replace

CLIENT_APP = [sys.executable, "-P", "-m", "nestfl.guarded.client_app"]


class ClientAppsOnly(SubprocessExecutor):
    """Starts client apps behind their gate, and no other task."""

    def __init__(self, port: int, *told: str) -> None:
        self.port, self.told = port, told

    def get_eligible_capacity(
        self, supported_task_types: set[TaskType], **_: object
    ) -> tuple[set[TaskType], set[str]]:
        """Request tasks for client apps only."""
        return {TaskType.CLIENT_APP}, set()

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start a client app; other users cannot read its token."""
        if spec.task_type != TaskType.CLIENT_APP:
            return LaunchResult.failed(f"this device runs no {spec.task_type}")
        if not is_own(self.port):  # the SuperNode has ended, and another user has its port
            return LaunchResult.failed(f"port {self.port} is not this user's")
        command = [*CLIENT_APP, str(self.port), str(spec.parent_pid), *self.told]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
        assert process.stdin is not None
        with process.stdin as token:
            token.write(spec.token)
        return LaunchResult.accepted()


def main() -> None:
    """Take tasks until the SuperNode ends."""
    leave_app()
    port, parent, *told = sys.argv[1:]
    replace(run_superexec, "get_executor", lambda *_, **__: ClientAppsOnly(int(port), *told))
    run_superexec.run_superexec(
        runtime_api_address=f"{LOOPBACK}:{port}",
        insecure=True,
        superexec_auth_secret=sys.stdin.buffer.read(),
        parent_pid=int(parent),
    )


if __name__ == "__main__":
    main()
