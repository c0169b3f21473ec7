"""`nestfl run` in the real simulation, with an app whose server was changed, and its parts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nestfl.bundle import copy_app
from nestfl.commands import app
from nestfl.commands.run import run, run_directory_of
from nestfl.launching.process_group import members
from nestfl.launching.request import Choice, Request, Simulation, choose

pytestmark = pytest.mark.processes

REPOSITORY = Path(__file__).resolve().parents[3]
SMOKE = ["experiment=smoke"]

RAISES = """
def run(*arguments, **named):
    raise RuntimeError("the server broke\\nin two lines")
"""
EXITS = """
def run(*arguments, **named):
    raise SystemExit(3)
"""
TELLS = """
_run = run

def run(grid, config, directory, command):
    told = {"group": os.getpgid(0), "file": __file__, "command": command}
    (directory.parent / "seen.json").write_text(json.dumps(told))
    return _run(grid, config, directory, command)
"""
DRIVER = """
import sys
from pathlib import Path
from nestfl.commands.run import run
from nestfl.launching.request import Request

app_dir, run_dir = map(Path, sys.argv[1:3])
workers = None if "engine=local" in sys.argv else 1
sys.exit(run(Request(sys.argv[3:], workers=workers, run_dir=run_dir, app_dir=app_dir)))
"""


class ChangedApp:
    """A checkout whose server has something more to do, a run's directory, and another app."""

    def __init__(self, root: Path) -> None:
        self.app_dir = root / "a checkout"
        self.run_dir = root / "a run's record"
        self.elsewhere = root / "elsewhere"
        self.temporary = root / "tmp"
        self.cache = root / "its cache"
        for folder in (self.temporary, self.cache):
            folder.mkdir()
        copy_app(REPOSITORY, self.app_dir)
        for package in ("server_app", "client_app"):
            _write_package(self.elsewhere / package, "raise ImportError('the wrong app')")

    def add(self, code: str) -> None:
        """Add to the server's code."""
        with (self.app_dir / "server_app" / "app.py").open("a") as file:
            file.write(code)

    def start(self, *overrides: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", DRIVER, self.app_dir, self.run_dir, *overrides],
            cwd=self.elsewhere,
            env=os.environ
            | {
                "PYTHONPATH": str(REPOSITORY),
                "TMPDIR": str(self.temporary),
                "NESTFL_CACHE": str(self.cache),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *overrides: str) -> tuple[int, str, str]:
        process = self.start(*overrides)
        out, err = process.communicate(timeout=500)
        return process.returncode, out, err

    def seen(self) -> dict[str, Any]:
        seen: dict[str, Any] = json.loads((self.run_dir.parent / "seen.json").read_text())
        return seen

    def assert_nothing_is_left(self) -> None:
        assert members(self.seen()["group"]) == []
        assert list(self.temporary.glob("nestfl-*")) == []  # torch leaves an empty cache there
        assert not list(self.app_dir.rglob("__pycache__"))  # it may be another user's


def _write_package(folder: Path, code: str) -> None:
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "app.py").write_text(code)


@pytest.fixture
def changed(tmp_path: Path) -> ChangedApp:
    return ChangedApp(tmp_path)


def test_a_run_imports_a_copy_of_its_app_and_leaves_nothing_running(changed: ChangedApp) -> None:
    changed.add(TELLS)
    code, out, err = changed.run(*SMOKE, "rounds=1")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == f"4 simulated clients on cpu, run in {changed.run_dir}"
    told = [line for line in lines if ", tests: " not in line]  # how far the clients' tests are
    assert told[1].startswith("round 1/1, 4/4 replies, ")
    seen = changed.seen()
    assert Path(seen["file"]).is_relative_to(changed.cache / f"apps-{os.getuid()}")
    assert seen["command"] == "nestfl run experiment=smoke rounds=1 --workers 1"
    changed.assert_nothing_is_left()


def test_a_server_that_raises_fails_the_run_and_says_why(changed: ChangedApp) -> None:
    changed.add(RAISES)
    code, _, err = changed.run(*SMOKE)
    assert code == 1
    assert err.splitlines() == [
        "nestfl run: the run failed",
        "  RuntimeError: the server broke",
        "  in two lines",
        f"  The full log: {changed.run_dir / 'flower.log'}",
    ]
    assert "Traceback" in (changed.run_dir / "flower.log").read_text()


def test_a_server_that_exits_early_fails_the_run_though_flower_calls_it_completed(
    changed: ChangedApp,
) -> None:
    changed.add(EXITS)
    code, _, err = changed.run(*SMOKE)
    assert code == 1
    assert "the run failed" in err


def test_ctrl_c_stops_all_and_says_how_to_go_on(changed: ChangedApp) -> None:
    changed.add(TELLS)
    process = changed.start(*SMOKE, "rounds=1000")
    checkpoints = changed.run_dir / "checkpoints"
    while not list(checkpoints.glob("round-*.safetensors")):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.startswith("nestfl run: stopped")
    assert f"{checkpoints}/round-" in err
    assert "nestfl run --resume" in err
    changed.assert_nothing_is_left()


@pytest.mark.parametrize("request_to_stop", [signal.SIGINT, signal.SIGTERM])
def test_a_request_to_stop_while_flower_starts_stops_all(
    changed: ChangedApp, request_to_stop: signal.Signals
) -> None:
    process = changed.start(*SMOKE)
    while not list(changed.temporary.glob("*/output")):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(request_to_stop)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + request_to_stop
    assert err == "nestfl run: stopped. No checkpoint was written yet.\n"
    assert list(changed.temporary.glob("nestfl-*")) == []
    assert not changed.run_dir.exists()  # nothing that blocks the next try


@pytest.mark.parametrize("engine", ["ray", "local"])
def test_a_path_that_is_not_there_is_told_before_the_run_and_leaves_nothing(
    changed: ChangedApp, engine: str
) -> None:
    code, out, err = changed.run("dataset=cifar10", "dataset.path=no where", f"engine={engine}")
    missing = changed.elsewhere / "no where"
    assert (code, out) == (2, "")
    assert err == f"nestfl run: dataset.path: {missing} does not exist\n"
    assert not changed.run_dir.exists()
    assert list(changed.temporary.glob("nestfl-*")) == []


def test_what_is_wrong_of_paths_is_told_before_anything_large_is_imported(tmp_path: Path) -> None:
    taken = tmp_path / "taken run"
    (taken / "checkpoints").mkdir(parents=True)
    (taken / "checkpoints" / "round-1.safetensors").touch()
    large = "print([m for m in ('torch', 'flwr', 'hydra', 'ray') if m in sys.modules])"
    for request, told in {
        f"Request(run_dir=Path({str(taken)!r}))": f"name, or go on with resume='{taken}'",
        "Request(['dataset.path=no where'])": "no where does not exist",
        "Request(['dataset.tokenizer=./no/where'])": "dataset.tokenizer: ",
        "Request(['model.weights=/no/where.pt'])": "model.weights: /no/where.pt does not exist",
        "Request(resume=Path('nowhere'))": "nowhere is no run directory",
    }.items():
        script = (
            "import sys; from pathlib import Path; from nestfl.launching.request import Request\n"
            f"try: {request}.check_paths()\nexcept ValueError as error: print(error)\n{large}"
        )
        said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        message, imported = said.stdout.splitlines()
        assert told in message
        assert imported == "[]"


def test_what_was_started_ends_with_its_folders_if_its_starter_is_killed(
    tmp_path: Path,
) -> None:
    starter = """
import pathlib, time
from nestfl.launching.process_group import ProcessGroup
own = pathlib.Path.cwd() / "a folder"
(own / "inside").mkdir(parents=True)
with ProcessGroup({"PATH": "/bin:/usr/bin"}, pathlib.Path.cwd(), (own,)) as group:
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
    assert not (tmp_path / "a folder").exists()


def test_a_directory_without_an_app_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(Request(app_dir=tmp_path)) == 2
    assert "no Flower app in" in capsys.readouterr().err


def test_resume_is_an_absolute_override(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Request(["a=1"], resume=Path("old run")).hydra() == f"a=1 'resume={tmp_path}/old run'"
    assert Request(["resume=old", "a=1"]).hydra() == f"a=1 resume={tmp_path}/old"


def test_a_run_directory_is_new_unless_a_run_goes_on(tmp_path: Path) -> None:
    taken = tmp_path / "runs" / "taken"
    taken.mkdir(parents=True)
    (taken / "metrics.jsonl").touch()
    named = Choice(3, str(tmp_path / "runs"), "taken")
    with pytest.raises(ValueError, match=f"{taken} exists"), run_directory_of(Request(), named):
        pass
    both = Request(run_dir=tmp_path / "new", resume=taken)
    with pytest.raises(ValueError, match="leave out --run-dir or"), run_directory_of(both, named):
        pass


def test_the_fleet_and_the_names_come_from_the_configuration() -> None:
    _, simulation, choice = choose(Request(["fleet=small", "name=mine", "output=there"]))
    assert (choice.output, choice.name) == ("there", "mine")
    assert simulation.nodes == choice.nodes == 4
    assert choice.label == "scalefl-resnet20-digits"


def test_a_check_says_what_was_found_and_starts_nothing(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["run", "--check", "fleet=small", f"output={tmp_path}/runs"])
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0] == "network: resnet20, 9 units, scalefl"
    assert lines[4].startswith("level 4: 272,186 parameters, ")
    assert lines[5] == "data:    digits, as published, 10 classes, 360 examples to test on"
    assert lines[6] == "clients: 4, 288 to 289 examples each (iid), 4 a round"
    assert lines[7] == "device:  4 simulated clients on cpu"
    assert list(tmp_path.iterdir()) == []


def test_the_command_tells_wrong_overrides_by_its_exit_code() -> None:
    result = CliRunner().invoke(app, ["run", "model=nosuch"])
    assert result.exit_code == 2
    assert "unknown model 'nosuch'; choose from" in result.output


def test_workers_are_given_their_cpus() -> None:
    assert Simulation(20, cpus_per_client=2, workers=3).backend() == {
        "client_resources": {"num_cpus": 2, "num_gpus": 0.0},
        "init_args": {"num_cpus": 6.0},
    }
