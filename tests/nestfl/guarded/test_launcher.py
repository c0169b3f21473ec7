"""A device starts only client apps, and no process list shows their tokens."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec

from nestfl.guarded import launcher
from nestfl.guarded.launcher import ClientAppsOnly
from nestfl.guarded.own_user import own_port

TOKEN = "5ec2e7" * 8
ECHO = "import sys; open(sys.argv[1], 'w').write(repr((sys.argv[2:], sys.stdin.read())))"


def task(kind: TaskType) -> ExecutionSpec:
    return ExecutionSpec(
        kind,
        "here:1",
        TOKEN,
        insecure=True,
        root_certificates_path=None,
        runtime_dependency_install=False,
        parent_pid=7,
        suppress_output=False,
        task_id=1,
    )


def test_a_token_is_told_to_the_client_app_and_is_no_argument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "told"
    monkeypatch.setattr(launcher, "CLIENT_APP", [sys.executable, "-c", ECHO, str(told)])
    with own_port(0) as listener:
        port = listener.getsockname()[1]
        device = ClientAppsOnly(port, "own code", "budget=1.0")
        assert device.launch(task(TaskType.CLIENT_APP)).status == "accepted"
    for _ in range(600):
        if told.exists() and told.read_text():
            break
        time.sleep(0.1)
    assert told.read_text() == repr(([str(port), "7", "own code", "budget=1.0"], TOKEN))


def test_a_port_that_is_another_users_gives_no_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One who waits for the SuperNode to end could give it code of his own."""
    monkeypatch.setattr("subprocess.Popen", None)
    with own_port(0) as listener:
        device = ClientAppsOnly(listener.getsockname()[1], "own code", "")
        monkeypatch.setattr("os.getuid", lambda: 12345)
        assert device.launch(task(TaskType.CLIENT_APP)).status == "failed"


@pytest.mark.parametrize("kind", sorted(set(TaskType) - {TaskType.CLIENT_APP}))
def test_no_other_task_is_asked_for_or_started(
    kind: TaskType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subprocess.Popen", None)
    device = ClientAppsOnly(1, "own code", "")
    assert device.get_eligible_capacity(set(TaskType)) == ({TaskType.CLIENT_APP}, set())
    assert device.launch(task(kind)).status == "failed"
