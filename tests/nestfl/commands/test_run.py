"""`nestfl run`, with a tiny Flower app in the real simulation, and its parts."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nestfl.cli import app
from nestfl.commands.run import Choice, Request, choose, run
from nestfl.launching.flower import Simulation
from nestfl.launching.process_group import members

pytestmark = pytest.mark.processes

REPOSITORY = Path(__file__).resolve().parents[3]
FLOWER_DEFAULT_PORT = 39091

PYPROJECT = """
[project]
name = "tiny"
version = "0.1.0"
description = "A tiny app."
license = "Apache-2.0"
[tool.flwr.app]
publisher = "nobody"
fab-include = ["server_app/**/*.py", "client_app/**/*.py"]
[tool.flwr.app.components]
serverapp = "server_app.app:app"
clientapp = "client_app.app:app"
[tool.flwr.app.config]
hydra = ""
run-dir = ""
command = ""
"""

CLIENT = """
import os
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.query()
def query(message, context):
    seen = ConfigRecord({"file": __file__, "pid": os.getpid()})
    return Message(RecordDict({"seen": seen}), reply_to=message)
"""

SERVER = """
import json, os, sys, time
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    run_dir = Path(context.run_config["run-dir"])

    def tell(name, record):
        with (run_dir / name).open("a") as file:
            file.write(json.dumps(record) + "\\n")

    hydra = context.run_config["hydra"]
    if "raise" in hydra:
        raise RuntimeError("the server broke\\nin two lines")
    if "exit" in hydra:
        sys.exit(3)
    wanted = int(hydra.split("wanted=")[1].split()[0])
    while len(nodes := list(grid.get_node_ids())) < wanted:
        time.sleep(0.05)
    rounds = 1000 if "endless" in hydra else 2
    tell("progress.jsonl", {"event": "start", "rounds": rounds, "levels": 1, "nodes": len(nodes)})
    for number in range(1, rounds + 1):
        messages = [Message(RecordDict(), node, "query") for node in nodes]
        replies = list(grid.send_and_receive(messages))
        of = len(nodes)
        tell("progress.jsonl", {"event": "reply", "round": number, "done": of, "of": of})
        (run_dir / "checkpoints").mkdir(exist_ok=True)
        (run_dir / "checkpoints" / "round-000001.safetensors").write_bytes(b"")
        clients = {"sampled": of, "replied": len(replies), "refused": 0, "failed": 0}
        levels = {"1": {"accuracy": number / 4, "exits": {}}}
        tell("metrics.jsonl", {"round": number, "seconds": 1, "clients": clients, "levels": levels})
        tell("progress.jsonl", {"event": "round", "round": number})
        clients = [dict(reply.content["seen"]) for reply in replies]
        seen = {"hydra": hydra, "nodes": len(nodes), "clients": clients, "argv": sys.argv}
        (run_dir / "seen.json").write_text(json.dumps(seen | {"group": os.getpgid(0)}))
    tell("progress.jsonl", {"event": "end", "reason": None})
    (run_dir / "summary.json").write_text("{}")
"""

DRIVER = """
import sys
from pathlib import Path
from nestfl.commands.run import Choice, Request, run

request = Request(sys.argv[3:], workers=1, run_dir=Path(sys.argv[2]), app_dir=Path(sys.argv[1]))
choice = Choice(nodes=3, device="cpu")
sys.exit(run(request, lambda overrides: choice, lambda run_dir, console: print("well done")))
"""


class TinyApp:
    """A Flower app, a run directory, and a working directory with another app's client."""

    def __init__(self, root: Path) -> None:
        self.app_dir = root / "tiny"
        self.run_dir = root / "a run's record"
        self.elsewhere = root / "elsewhere"
        self.temporary = root / "tmp"
        self.temporary.mkdir()
        for package, code in {"server_app": SERVER, "client_app": CLIENT}.items():
            _write_package(self.app_dir / package, code)
            _write_package(self.elsewhere / package, "raise ImportError('the wrong app')")
        (self.app_dir / "pyproject.toml").write_text(PYPROJECT)

    def start(self, *overrides: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", DRIVER, self.app_dir, self.run_dir, *overrides],
            cwd=self.elsewhere,
            env=os.environ | {"PYTHONPATH": str(REPOSITORY), "TMPDIR": str(self.temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *overrides: str) -> tuple[int, str, str]:
        process = self.start(*overrides)
        out, err = process.communicate(timeout=300)
        return process.returncode, out, err

    def seen(self) -> dict[str, Any]:
        seen: dict[str, Any] = json.loads((self.run_dir / "seen.json").read_text())
        return seen

    def assert_nothing_is_left(self) -> None:
        seen = self.seen()
        assert members(seen["group"]) == []
        host, port = seen["argv"][seen["argv"].index("--runtime-api-address") + 1].split(":")
        with socket.socket() as caller:
            assert caller.connect_ex((host, int(port))) != 0
        assert list(self.temporary.iterdir()) == []
        assert not (self.app_dir / ".flwr").exists()


def _write_package(folder: Path, code: str) -> None:
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "app.py").write_text(code)


@pytest.fixture
def tiny(tmp_path: Path) -> TinyApp:
    return TinyApp(tmp_path)


@contextmanager
def stranger() -> Iterator[list[str]]:
    """Something that looks like a healthy SuperLink at Flower's own port, and what it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

        do_POST = do_GET  # noqa: N815

    try:
        server = HTTPServer(("127.0.0.1", FLOWER_DEFAULT_PORT), Handler)
    except OSError:  # a real stranger is there
        yield asked
        return
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield asked
    finally:
        server.shutdown()
        server.server_close()


def test_a_run_ends_well_on_its_own_flower(tiny: TinyApp) -> None:
    odd = ["wanted=3", "sizes=[1,2]", 'note=it\'s "two words" \\ é', "empty="]
    with stranger() as asked:
        code, out, err = tiny.run(*odd)
    assert (code, err) == (0, "")
    assert asked == []
    seen = tiny.seen()
    assert seen["hydra"] == Request(odd).hydra()
    assert seen["nodes"] == len(seen["clients"]) == 3
    assert len({client["pid"] for client in seen["clients"]}) == 1  # one worker
    assert all(str(tiny.temporary) in client["file"] for client in seen["clients"])
    lines = out.splitlines()
    assert lines[0] == f"3 simulated clients on cpu, run in {tiny.run_dir}"
    assert lines[1].startswith("round 1/2, 3/3 replies, accuracy of level 1: 25.0 %, 1.0 s")
    assert lines[2].startswith("round 2/2, 3/3 replies, accuracy of level 1: 50.0 %, 1.0 s")
    assert lines[3:] == ["well done"]
    tiny.assert_nothing_is_left()


def test_a_server_that_raises_fails_the_run_and_says_why(tiny: TinyApp) -> None:
    code, _, err = tiny.run("raise=yes")
    assert code == 1
    assert err.splitlines() == [
        "nestfl run: the run failed",
        "  RuntimeError: the server broke",
        "  in two lines",
        f"  The full log: {tiny.run_dir / 'flower.log'}",
    ]
    assert "Traceback" in (tiny.run_dir / "flower.log").read_text()


def test_a_server_that_exits_early_fails_the_run_though_flower_calls_it_completed(
    tiny: TinyApp,
) -> None:
    code, _, err = tiny.run("exit=3")
    assert code == 1
    assert "the run failed" in err


def test_ctrl_c_stops_all_and_says_how_to_go_on(tiny: TinyApp) -> None:
    process = tiny.start("wanted=3", "endless=yes")
    deadline = time.monotonic() + 240
    while not (tiny.run_dir / "seen.json").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.startswith("nestfl run: stopped after round ")
    assert str(tiny.run_dir / "checkpoints" / "round-000001.safetensors") in err
    assert "nestfl run --resume" in err
    tiny.assert_nothing_is_left()


@pytest.mark.parametrize("request_to_stop", [signal.SIGINT, signal.SIGTERM])
def test_a_request_to_stop_while_flower_starts_stops_all(
    tiny: TinyApp, request_to_stop: signal.Signals
) -> None:
    process = tiny.start("wanted=3")
    while not list(tiny.temporary.glob("*/superlink.log")):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(request_to_stop)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + request_to_stop
    assert err == "nestfl run: stopped. No checkpoint was written yet.\n"
    assert list(tiny.temporary.iterdir()) == []
    assert not tiny.run_dir.exists()  # nothing that blocks the next try


def test_what_was_started_ends_though_its_starter_is_killed(tmp_path: Path) -> None:
    starter = """
import pathlib, time
from nestfl.launching.process_group import ProcessGroup
with ProcessGroup({"PATH": "/bin:/usr/bin"}, pathlib.Path.cwd()) as group:
    print(group.start(["sleep", "600"], None).pid, flush=True)
    time.sleep(600)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", starter],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    group = os.getpgid(int(process.stdout.readline()))
    assert len(members(group)) >= 2
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 20
    while members(group):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_wrong_overrides_are_told_before_anything_is_started(
    tiny: TinyApp, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(overrides: str) -> Choice:
        raise ValueError(f"unknown model in {overrides!r}")

    request = Request(["model=x"], run_dir=tiny.run_dir, app_dir=tiny.app_dir)
    assert run(request, choose=refuse) == 2
    assert capsys.readouterr().err == "nestfl run: unknown model in 'model=x'\n"
    assert not tiny.run_dir.exists()


def test_a_directory_without_an_app_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(Request(app_dir=tmp_path), choose=lambda overrides: Choice(1)) == 2
    assert "no Flower app in" in capsys.readouterr().err


def test_resume_is_an_absolute_override(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Request(["a=1"], resume=Path("old run")).hydra() == f"a=1 'resume={tmp_path}/old run'"
    assert Request(["resume=old", "a=1"]).hydra() == f"a=1 resume={tmp_path}/old"


def test_a_run_directory_is_new_unless_a_run_goes_on(
    tiny: TinyApp, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "runs" / "taken"
    taken.mkdir(parents=True)
    (taken / "metrics.jsonl").touch()
    named = Choice(3, str(tmp_path / "runs"), "taken")
    assert run(Request(app_dir=tiny.app_dir), choose=lambda overrides: named) == 2
    assert f"{taken} exists" in capsys.readouterr().err
    both = Request(run_dir=tiny.run_dir, resume=taken, app_dir=tiny.app_dir)
    assert run(both, choose=lambda overrides: named) == 2
    assert "leave out --run-dir or --resume" in capsys.readouterr().err


def test_the_fleet_and_the_names_come_from_the_configuration() -> None:
    choice = choose("fleet=small name=mine output=there")
    assert (choice.output, choice.name) == ("there", "mine")
    assert choice.nodes > 0
    assert choice.label == "scalefl-resnet20-digits"


def test_the_command_tells_wrong_overrides_by_its_exit_code() -> None:
    result = CliRunner().invoke(app, ["run", "model=nosuch"])
    assert result.exit_code == 2
    assert "unknown model 'nosuch'; choose from" in result.output


def test_workers_are_given_their_cpus() -> None:
    assert Simulation(20, cpus_per_client=2, workers=3).federation_config() == (
        "num-supernodes=20 client-resources-num-cpus=2 client-resources-num-gpus=0.0 "
        "init-args-num-cpus=6"
    )
