"""Commands take a user's own code with --plugin, and runs keep theirs without it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import plugins
from nestfl.bundle import APP
from nestfl.commands import app
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
    """Return the result of a command in a process that has loaded no plugin yet."""
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
    assert own == fingerprint_of(folder / "app") != fingerprint_of(APP)
    assert own == nestfl("fingerprint", "--plugin", "mine.py").output.strip()
    assert (folder / "app" / "plugins" / "mine.py").read_text() == NETWORK + METHOD
    assert nestfl("fingerprint").output.strip() == fingerprint_of(APP)


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
    assert good.output.count("  ok   ") == 12
    broken = changed('            declare_parts(self.third, "weight", 1, (left, right))\n', "")
    saved(folder, broken)
    told = nestfl("check-model", "mine.py", "--model", "own", "--image-size", "8", code=1)
    assert "  FAILED   " in told.output
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


ACT = "        self.act = nn.ReLU()\n"
LEFT = "        self.left = "
BUILDS = "        super().__init__()\n"
BEGINS = "    def walk(self, x: Tensor) -> Walk:\n"
OUT = "yield self.fc(self.act(self.third(x)).mean((2, 3)))"
BROKEN = {
    "forgets declare_parts": (
        changed('            declare_parts(self.third, "weight", 1, (left, right))\n', ""),
        "model own cannot be sliced: sliced equals masked: width 0.5",
    ),
    "names change with the slice": (
        changed(ACT, f"{ACT}        self.add_module(f'act{{left}}', nn.Linear(left, 1))\n").replace(
            BEGINS, f"{BEGINS}        x = x + 0 * sum(p.sum() for p in self.parameters())\n"
        ),
        "slices keep names, and fit: Slice(width=0.25, exits=(1,)): act1.weight (1, 1) of the",
    ),
    "unused parameter": (
        changed(ACT, f"{ACT}        self.extra = nn.Linear(2, 2)\n"),
        "gradients reach all that is sent: Slice(width=1.0, exits=(1, 2)): extra.weight, extra.b",
    ),
    "hidden state": (
        changed(ACT, f"{ACT}        self.seen = cat((self.right.bias.detach(),))\n").replace(
            BEGINS, f"{BEGINS}        self.seen = self.seen + self.training\n"
        ),
        "buffers that are not sent stay: seen changes in training",
    ),
    "random": (
        changed(OUT, OUT.replace("self.fc(", "nn.functional.dropout(self.fc(") + ")"),
        "model own cannot be sliced: ",
    ),
    "wrong number of logits": (
        NETWORK.replace("num_classes)", "num_classes + 1)"),
        "builds at all widths, depths and exits: 1 answers of shapes [(4, 11)]: expected 1",
    ),
    "ignores the slice": (
        changed("slice.channels(4), slice.channels(8), slice.channels(12)", "4, 8, 12"),
        "cost falls with width and depth: half of the width has",
    ),
    "raises where it is narrow": (
        changed(BEGINS, f"{BEGINS}        assert self.left.out_channels > 1, 'narrow'\n"),
        "Slice(width=0.25, exits=(1, 2)): AssertionError: narrow (",
    ),
    "ends the process in its constructor": (
        changed(LEFT, f"        raise SystemExit('no way')\n{LEFT}"),
        "mine.py, line 15: SystemExit: no way",
    ),
    "raises in its constructor": (
        changed(LEFT, f"        raise TypeError('no\\nway')\n{LEFT}"),
        "mine.py, line 15: TypeError: no way",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_run_tells_before_the_start_why_a_network_cannot_be_sliced(
    what: str, folder: Path, cache_folder: Path
) -> None:
    code, message = BROKEN[what]
    saved(folder, code)
    chosen = ("--plugin", "mine.py", "model=own", "strategy=heterofl")
    refused = nestfl("run", *chosen, *SHORT, code=2)
    assert refused.stderr.count("\n") == 1
    assert refused.stderr.startswith("nestfl run: ")
    assert message in refused.stderr
    assert not (folder / "runs").exists()
    assert nestfl("run", "--check", *chosen, *SHORT, code=2).stderr == refused.stderr


@pytest.mark.usefixtures("cache_folder")
def test_a_network_that_goes_on_is_not_asked_for_more(folder: Path) -> None:
    chosen = ("--plugin", "mine.py", "model=own", "strategy=rolling")
    nestfl("run", *chosen, *SHORT, "name=one")
    nestfl("run", "--check", "--resume", "runs/one", "rounds=2")


PLAN = "    def plan(self, *given: object) -> None:\n        return {}['levels']\n"


@pytest.mark.parametrize(
    "command",
    [("run", "engine=local"), ("run", "--check"), ("compare", "seed=0,1")],
    ids=lambda given: " ".join(given),
)
def test_what_a_method_raises_is_told_with_its_line(command: list[str], folder: Path) -> None:
    saved(folder, METHOD + "\n" + PLAN, "method.py")
    refused = nestfl(*command, "--plugin", "method.py", "strategy=rolling", *SHORT[1:], code=2)
    assert refused.stderr.count("\n") == 1
    assert f"nestfl {command[0]}: " in refused.stderr
    assert "method.py, line 24: KeyError: 'levels'" in refused.stderr


def test_what_a_network_raises_in_a_plan_is_told_with_its_line(folder: Path) -> None:
    saved(folder, changed(LEFT, f"        {{}}['left']\n{LEFT}"))
    refused = nestfl("plan", "--plugin", "mine.py", "--model", "own", code=2)
    assert refused.stderr.count("\n") == 1
    assert "nestfl plan: the plugin " in refused.stderr
    assert "mine.py, line 15: KeyError: 'left'" in refused.stderr


LOSES = """

from training.local_training import LocalTraining


class Losing(LocalTraining):
    def loss(self, *given: object) -> None:
        raise KeyError("lost")


Rolling.Training = Losing
"""


@pytest.mark.usefixtures("cache_folder")
def test_what_a_client_raises_in_a_round_is_in_the_log_with_its_traceback(folder: Path) -> None:
    saved(folder, METHOD + LOSES, "method.py")
    chosen = ("--plugin", "method.py", "strategy=rolling", *SHORT, "name=lost")
    failed = nestfl("run", *chosen, code=1)
    assert "KeyError: 'lost'" in failed.stderr
    assert "method.py, line " in failed.stderr
    log = (folder / "runs" / "lost" / "flower.log").read_text()
    assert "Traceback (most recent call last)" in log
    assert 'raise KeyError("lost")' in log


NOBODY = "~nosuchuser/x"


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--plugin", NOBODY),
        ("run", "dataset=cifar10", f"dataset.path={NOBODY}"),
        ("run", "--resume", NOBODY),
        ("run", f"resume={NOBODY}"),
        ("run", *SHORT, "--run-dir", NOBODY),
        ("run", *SHORT, f"output={NOBODY}"),
        ("run", "--check", f"model.weights={NOBODY}"),
        ("compare", "seed=0,1", f"output={NOBODY}"),
        ("variance", "dataset=cifar10", f"dataset.path={NOBODY}"),
        ("data", NOBODY),
        ("predict", NOBODY, "x"),
        ("report", NOBODY),
        ("runs", NOBODY),
        ("check-model", NOBODY),
        ("split", NOBODY, "--output", "parts"),
        ("serve", NOBODY),
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("folder")
def test_the_home_of_nobody_is_told_in_one_line(arguments: tuple[str, ...]) -> None:
    refused = nestfl(*arguments, code=2)
    assert refused.stderr.count("\n") == 1
    assert refused.stderr.startswith(f"nestfl {arguments[0]}: ")
    assert NOBODY in refused.stderr
    assert [path.name for path in Path().iterdir()] == ["mine.py"]
