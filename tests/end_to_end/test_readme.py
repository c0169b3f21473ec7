"""The examples of the README and of docs/your-network.md do what they say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from models import Slice, build, extract, families, slice_map
from strategies.aggregation.nested_mean import NestedMean
from strategies.aggregation.update import Update

PROJECT = Path(__file__).parents[2]
README = (PROJECT / "README.md").read_text()
GUIDE = (PROJECT / "docs" / "your-network.md").read_text()
SLICING, OWN_SERVER = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
TWIN, FEDROLEX = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
COPIED = {
    *("client_app", "conf", "data", "inference", "models", "nestfl", "plugins", "protocol"),
    *("server_app", "strategies", "tests", "training", "LICENSE", "README.md", "pyproject.toml"),
}

SHORT_RUN = (
    "fleet=small rounds=2 train.epochs=1 dataset.max_train=120 dataset.max_test=40 "
    "evaluate.every=0 train.augment=false"
)
FEDERATE = f"""
import torch
from nestfl.local_engine import LocalGrid
from server_app import app as server
from server_app.building import strategy_of
from server_app.config.composing import compose
from server_app.config.weights import read_weights

def federate(overrides, name):
    config = compose(f"{{overrides}} {SHORT_RUN} output=runs name={{name}}")
    made = strategy_of(config)
    before = {{name: tensor.clone() for name, tensor in made.state.items()}}
    after = server.run(LocalGrid(4), config)
    unchanged = [name for name in before if torch.equal(after.state[name], before[name])]
    assert unchanged == [], unchanged
    return after
"""


def said(pattern: str) -> str:
    """Return the guide's text that matches a pattern, in one line."""
    text = re.sub(r"\s+", " ", GUIDE)
    (found,) = re.findall(pattern, text)
    return str(found)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    for name in COPIED:
        path = PROJECT / name
        copy = shutil.copytree if path.is_dir() else shutil.copy
        copy(path, folder / name)
    return folder


def python(checkout: Path, script: str) -> str:
    """Return the output of a script that runs in the copy, and imports only the copy."""
    seen = "import models; assert models.__file__.startswith({!r}), models.__file__\n"
    done = subprocess.run(
        [sys.executable, "-c", seen.format(str(checkout)) + script],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_first_example_runs_and_changes_nothing_untrained() -> None:
    names: dict[str, Any] = {"images": torch.randn(2, 3, 16, 16)}
    built, averaged = SLICING.split("\nwhere = ")
    exec(built, names)
    before = {name: tensor.clone() for name, tensor in names["full"].state_dict().items()}
    exec(f"where = {averaged}", names)
    assert names["early"].shape == (2, 10)
    after = names["full"].state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


# --- a network of your own -------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder with the guide's two files, outside of any checkout."""
    folder = tmp_path / "my work"
    folder.mkdir()
    (folder / said(r"Saved as `(\w+\.py)`, `nestfl run --plugin mine")).write_text(TWIN)
    (folder / said(r"Saved as `(\w+\.py)`, `nestfl run --plugin fedrolex")).write_text(FEDROLEX)
    return folder


def test_a_users_own_network_trains(checkout: Path, own: Path) -> None:
    """From pre-trained weights too, and in levels of ScaleFL."""
    command = said(r"`nestfl run --plugin mine.py (model=twin[^`]*)` trains")
    script = f"""{FEDERATE}
import plugins
plugins.load({str(own / "mine.py")!r})
trained = federate({command!r}, "first")
assert [level.split.width for level in trained.levels] == [0.35, 0.5, 0.7, 1.0]
torch.save(trained.network(4).state_dict(), "twin.pt")

config = compose("model=twin strategy=heterofl model.weights=twin.pt fleet=small")
again = strategy_of(config, weights=read_weights("twin.pt"))
assert all(torch.equal(again.state[name], tensor) for name, tensor in trained.state.items())

by_cost = federate("model=twin strategy=scalefl", "second")
assert len({{level.split.width for level in by_cost.levels}}) == 4
print("trained")
"""
    assert python(checkout, script).endswith("trained\n")


@pytest.fixture
def twin(monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's own network, registered for as long as the test takes."""
    monkeypatch.setattr("models.families._FAMILIES", dict(families._FAMILIES))
    exec(TWIN, {})


@pytest.mark.usefixtures("twin")
def test_a_users_own_network_is_sliced_and_averaged() -> None:
    full = build("twin", 10)
    half = build("twin", 10, slice=Slice(width=0.5))
    where = slice_map(full, half)
    cut = extract(full.state_dict(), where)
    joined = full.state_dict()["fc.weight"]
    assert torch.equal(cut["fc.weight"], torch.cat((joined[:, :8], joined[:, 16:32]), 1))
    mean = NestedMean()
    mean.add(Update(cut, where))
    after = mean.result(full.state_dict())
    assert all(torch.equal(after[name], tensor) for name, tensor in full.state_dict().items())


# --- a strategy of your own ------------------------------------------------------------------


def test_a_users_own_strategy_trains(checkout: Path, own: Path) -> None:
    command = said(r"`nestfl run --plugin fedrolex.py (strategy=fedrolex strategy.step=2)`")
    script = f"""{FEDERATE}
import plugins
plugins.load({str(own / "fedrolex.py")!r})
trained = federate({command!r}, "run")
assert type(trained).__name__ == "FedRolex"
assert trained.window_of(0, round=3).seed == 6
print("trained")
"""
    assert python(checkout, script).endswith("trained\n")


def test_the_ten_lines_of_a_server_of_ones_own_run(checkout: Path) -> None:
    script = f"""
from flwr.app import Context, RecordDict
from nestfl.local_engine import LocalGrid
{OWN_SERVER.replace("fleet=small rounds=3", f"{SHORT_RUN} rounds=3")}
context = Context(1, 0, {{}}, RecordDict(), {{}})
app(grid=LocalGrid(4), context=context)
"""
    told = python(checkout, script)
    assert "Global Arrays" in told
    assert "3: {'global'" in re.sub(r"\s+", " ", told)


# --- as a user types it ----------------------------------------------------------------------


def nestfl(checkout: Path, folder: Path, *arguments: str) -> str:
    """Return the output of a command that is typed in a folder."""
    done = subprocess.run(
        [sys.executable, "-c", "from nestfl.commands import app; app()", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.processes
def test_nestfl_run_trains_a_users_own_network_with_a_users_own_strategy(
    checkout: Path, own: Path
) -> None:
    """From a folder of the user's, in processes of Flower; and the run knows its code again."""
    before = {file: file.read_bytes() for file in checkout.rglob("*") if file.suffix != ".pyc"
              and file.is_file()}  # fmt: skip
    chosen = ("--plugin", "mine.py", "--plugin", "fedrolex.py", "model=twin", "strategy=fedrolex")
    nestfl(checkout, own, "run", *chosen, *SHORT_RUN.split(), "name=mine")
    kept = sorted(file.name for file in (own / "runs" / "mine" / "plugins").iterdir())
    assert kept == ["fedrolex.py", "mine.py"]
    (own / "mine.py").rename(own / "elsewhere.py")
    assert "accuracy" in nestfl(checkout, own, "predict", "runs/mine")
    nestfl(checkout, own, "run", "--resume", "runs/mine", "rounds=3")
    assert len((own / "runs" / "mine" / "metrics.jsonl").read_text().splitlines()) == 3
    assert all(file.read_bytes() == content for file, content in before.items())


@pytest.mark.parametrize("page", sorted(PROJECT.glob("docs/**/*.md")), ids=lambda page: page.name)
def test_files_that_the_docs_name_are_there(page: Path) -> None:
    named = set(re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|yaml|sh|md))`", page.read_text()))
    named = {file for file in named if "NAME" not in file}
    assert [file for file in sorted(named) if not (PROJECT / file).exists()] == []
