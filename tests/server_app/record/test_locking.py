"""A run directory has one writer, named by its lock; a killed writer does not block it."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from nestfl.commands.run import run_directory_of
from nestfl.launching.request import Choice, Request, choose
from server_app.config.composing import Config, ConfigError, compose
from server_app.config.saved import CONFIG_FILE
from server_app.record import checkpoint
from server_app.record.files import LAUNCHER_LOCK, RECORD_LOCK, Lock
from server_app.record.run_record import RunRecord

HOLD = """
import sys, time
from pathlib import Path
from server_app.record.files import Lock
lock = Lock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


@contextmanager
def another_process(
    file: Path, *arguments: str, program: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """One that holds a lock, until it is killed."""
    start = ["-c", HOLD]
    if program is not None:
        program.write_text(HOLD)
        start = [str(program)]
    command = [sys.executable, *start, str(file), *arguments]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """The directory of a run that can be resumed."""
    config = replace(compose("fleet=small"), output=str(tmp_path / "runs"))
    with RunRecord.create(config) as record:
        checkpoint.save(record.checkpoints, 1, {}, {})
    return record.directory


@pytest.fixture
def app_dir(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text("[tool.flwr.app.components]")
    return tmp_path


def test_a_lock_names_its_holder_and_goes_with_it(tmp_path: Path) -> None:
    file = tmp_path / ".lock"
    with another_process(file) as holder:
        holder_named = f"in use by process {holder.pid} on {socket.gethostname()}: wait"
        with pytest.raises(ConfigError, match=holder_named):
            Lock(file)
        with pytest.raises(ConfigError, match=holder_named):  # trying changes nothing
            Lock(file)
    holder.wait()
    Lock(file).close()


def test_who_has_patience_takes_over_from_a_process_that_ends(tmp_path: Path) -> None:
    file = tmp_path / ".lock"
    with another_process(file) as holder:
        ending = subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -9 {holder.pid}"])
        Lock(file, patience=60).close()
        ending.wait()


@pytest.fixture
def gone() -> str:
    """The number of a process that has ended."""
    with subprocess.Popen(["true"]) as process:
        pass
    return str(process.pid)


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_a_serverapp_that_has_outlived_its_superlink_is_ended(
    tmp_path: Path, gone: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    file, program = tmp_path / ".lock", tmp_path / "flwr-serverapp"
    with another_process(file, "--parent-pid", gone, program=program) as orphan:
        orphan.send_signal(signal.SIGSTOP)  # it hangs, and takes no other signal
        Lock(file, patience=0.2).close()
        assert orphan.wait() == -signal.SIGKILL
    said = f"process {orphan.pid} was ended: it is a ServerApp whose SuperLink is gone, and it hung"
    assert caplog.messages[0].startswith(said)


@pytest.mark.parametrize("other", ["program", "parent", "file", "patience"])
def test_no_other_process_is_ended_but_the_command_that_would_is_told(
    other: str, tmp_path: Path, gone: str
) -> None:
    file, parent = tmp_path / ".lock", str(os.getpid()) if other == "parent" else gone
    program = tmp_path / ("nestfl" if other == "program" else "flwr-serverapp")
    patience = 0.0 if other == "patience" else 0.2
    held = tmp_path / ".other" if other == "file" else file
    with another_process(held, "--parent-pid", parent, program=program) as holder:
        if other == "file":
            file.write_text(held.read_text())
            with file.open() as opened:
                fcntl.flock(opened, fcntl.LOCK_EX)
                assert_told(file, holder.pid, patience)
        else:
            assert_told(file, holder.pid, patience)
        assert holder.poll() is None


def assert_told(file: Path, holder: int, patience: float) -> None:
    with pytest.raises(ConfigError) as refused:
        Lock(file, patience)
    assert str(refused.value).endswith(f"wait until that has ended, or stop it (kill {holder})")


def test_a_file_system_without_locks_is_told_of_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_locks(*_: object) -> None:  # as of some network file systems
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", no_locks)
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)  # to pytest
    Lock(tmp_path / ".lock").close()
    assert caplog.messages[0].startswith(f"{tmp_path} cannot be locked (No locks available)")


def test_a_record_is_not_resumed_while_another_process_writes_it(
    stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server_app.record.run_record.PATIENCE", 0.2)
    config, start = compose(f"resume={stopped}"), checkpoint.load(stopped)
    before = (stopped / CONFIG_FILE).read_bytes()
    with another_process(stopped / RECORD_LOCK) as writer:
        with pytest.raises(ConfigError, match=f"{stopped} is in use by process {writer.pid} on"):
            RunRecord.resume(replace(config, rounds=99), start)
        assert (stopped / CONFIG_FILE).read_bytes() == before
    writer.wait()
    with RunRecord.resume(config, start):
        assert "in use by process" in refusal(config, start)
    RunRecord.resume(config, start).close()


def refusal(config: Config, start: checkpoint.Checkpoint) -> str:
    with pytest.raises(ConfigError) as refused:
        RunRecord.resume(config, start)
    return str(refused.value)


@pytest.mark.parametrize("held", [LAUNCHER_LOCK, RECORD_LOCK])
def test_nestfl_run_refuses_a_directory_in_use_before_it_starts_anything(
    held: str,
    stopped: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("server_app.record.files.PATIENCE", 0.2)
    with another_process(stopped / held) as holder:
        told = f"{stopped} is in use by process {holder.pid} on"
        taken = run_directory_of(Request(resume=stopped), Choice(1))
        with pytest.raises(ConfigError, match=told), taken:
            raise AssertionError("it was taken")


def test_a_damaged_checkpoint_is_told_of_before_anything_is_started(stopped: Path) -> None:
    last = checkpoint.save(stopped / checkpoint.FOLDER, 2, {}, {})
    last.write_bytes(last.read_bytes()[:-1])
    with pytest.raises(ValueError, match=f"{last} is not a whole checkpoint"):
        choose(Request(resume=last))


AS_NOBODY = """
import os, sys
from pathlib import Path
import server_app.record.run_record  # now: the other user may not be allowed to read Python's files
from nestfl.commands.run import run_directory_of
from nestfl.launching.request import Choice, Request

resume = Path(sys.argv[1]) if sys.argv[1] else None
os.setuid(65534)
try:
    with run_directory_of(Request(resume=resume), Choice(1, sys.argv[2])):
        pass
except (ValueError, OSError) as error:
    sys.exit(f"nestfl run: {error}")
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
def test_a_directory_of_another_user_is_told_of_in_one_line(stopped: Path, app_dir: Path) -> None:
    with tempfile.TemporaryDirectory() as root:  # pytest's own are closed to others
        shutil.copytree(app_dir, Path(root, "app"))
        for folder in (Path(root), Path(root, "app")):
            folder.chmod(0o755)
        theirs = Path(root, "app", "runs", stopped.name)

        def told(resume: str, output: str) -> list[str]:
            command = [sys.executable, "-c", AS_NOBODY, resume, output]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 1, done.stderr
            return done.stderr.splitlines()

        (line,) = told(str(theirs), "")
        assert line.startswith(
            f"nestfl run: cannot write to the run directory {theirs} (Permission denied): "
        )
        (line,) = told("", f"{root}/mine")
        assert line.startswith(f"nestfl run: cannot make the directory {root}/mine/")
        assert "(Permission denied): expected a place that this user may write" in line


def test_a_run_directory_that_cannot_be_written_is_told_of_in_one_line(stopped: Path) -> None:
    (stopped / RECORD_LOCK).unlink()
    (stopped / RECORD_LOCK).mkdir()  # which no user can write to
    with pytest.raises(ConfigError, match=f"cannot write to the run directory {stopped} "):
        RunRecord.resume(compose(f"resume={stopped}"), checkpoint.load(stopped))
