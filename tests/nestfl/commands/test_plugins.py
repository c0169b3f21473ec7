"""Commands take a user's own code with --plugin, and runs know theirs without it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import plugins
from nestfl.bundle import CHECKOUT
from nestfl.cli import app
from nestfl.guarded.pinned_code import fingerprint_of
from tests.support.own_code import METHOD, NETWORK, changed, saved

pytestmark = pytest.mark.usefixtures("no_plugins_left", "one_thread")

SHORT = [
    "engine=local",
    "fleet=small",
    "rounds=1",
    "train.epochs=1",
    "dataset.max_train=80",
    "dataset.max_test=20",
    "evaluate.every=0",
    "strategy.tolerance=0.4",
    "train.augment=false",
    "report=false",
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "my work"
    saved(made, NETWORK + METHOD)
    monkeypatch.chdir(made)
    return made


def nestfl(*arguments: str, code: int = 0) -> Result:
    """What a command does in a process that has loaded no plugin yet."""
    for plugin in plugins.loaded():
        plugins.unload(plugin)
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == code, done.output
    return done


def test_a_run_is_predicted_reported_and_resumed_without_the_plugin(folder: Path) -> None:
    chosen = ("--plugin", "mine.py", "model=own", "strategy=rolling")
    nestfl("run", *chosen, *SHORT, "name=one")
    run = folder / "runs" / "one"
    assert (run / "plugins" / "mine.py").read_text() == NETWORK + METHOD
    recorded = json.loads((run / "fleet.json").read_text())
    assert "--plugin mine.py" in recorded["command"]
    (folder / "mine.py").unlink()
    assert "accuracy" in nestfl("predict", "runs/one").output
    assert "report.html" in nestfl("report", "runs/one").output
    nestfl("run", "--resume", "runs/one", "rounds=2")
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2
    saved(folder, NETWORK + METHOD + "# changed\n")
    refused = nestfl("run", "--resume", "runs/one", "--plugin", "mine.py", "rounds=3", code=2)
    assert "nestfl run: the plugin " in refused.stderr
    assert "a run goes on with the files that it was started with" in refused.stderr


def test_a_comparison_keeps_the_code_of_its_runs(folder: Path) -> None:
    asked = ("--plugin", "mine.py", "model=own", "strategy=rolling,fedavg", *SHORT, "name=both")
    nestfl("compare", *asked, "--jobs", "1")
    compared = folder / "runs" / "both"
    assert (compared / "plugins" / "mine.py").read_text() == NETWORK + METHOD
    runs = sorted(path.parent.name for path in compared.glob("*/summary.json"))
    assert runs == ["strategy-fedavg", "strategy-rolling"]
    assert "report.html" in nestfl("report", "runs/both").output
    saved(folder, NETWORK + METHOD + "# changed\n")
    assert "differs from" in nestfl("compare", *asked, code=2).stderr


def test_other_commands_take_a_plugin(folder: Path) -> None:
    planned = nestfl(
        "plan", "--plugin", "mine.py", "--model", "own", "--levels", "2", "--tolerance", "0.5",
        "--no-latency", "--json",
    )  # fmt: skip
    assert "levels" in planned.output
    own = nestfl("fingerprint", "--plugin", "mine.py", "--copy", "app").output.strip()
    assert own == fingerprint_of(folder / "app") != fingerprint_of(CHECKOUT)
    assert own == nestfl("fingerprint", "--plugin", "mine.py").output.strip()
    assert (folder / "app" / "plugins" / "mine.py").read_text() == NETWORK + METHOD
    assert nestfl("fingerprint").output.strip() == fingerprint_of(CHECKOUT)


@pytest.mark.usefixtures("folder")
def test_a_wrong_plugin_is_told_in_one_line_and_nothing_is_written(tmp_path: Path) -> None:
    saved(Path.cwd(), "x = (\n", "wrong.py")
    refused = nestfl("run", "--plugin", "wrong.py", "model=own", *SHORT, code=2)
    assert refused.stderr.count("\n") == 1
    assert "nestfl run: the plugin " in refused.stderr
    assert "wrong.py, line 1: SyntaxError: " in refused.stderr
    assert not (tmp_path / "my work" / "runs").exists()


def test_check_model_shows_each_property_and_says_what_to_change(folder: Path) -> None:
    good = nestfl("check-model", "mine.py", "bias=false", "--image-size", "8", "--classes", "5")
    assert good.output.count("│ ok") == 12
    broken = changed('            declare_parts(self.third, "weight", 1, (left, right))\n', "")
    saved(folder, broken)
    told = nestfl("check-model", "mine.py", "--model", "own", "--image-size", "8", code=1)
    assert "│ FAILED" in told.output
    assert 'declare_parts(self.third, "weight", axis=1' in told.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.py"], "absent.py does not exist"),
        (["mine.py", "--model", "twin"], "unknown model 'twin'; choose from own"),
        (["mine.py", "size=3"], "no option 'size=3' of own; choose from bias"),
        (["method.py"], "method.py registers no network"),
    ],
)
def test_check_model_refuses_what_it_cannot_check(
    arguments: list[str], message: str, folder: Path
) -> None:
    saved(folder, METHOD, "method.py")
    assert message in nestfl("check-model", *arguments, code=2).stderr
