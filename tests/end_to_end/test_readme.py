"""The README's examples do what it says: files are written into a copy of the project."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from models import Slice, build, extract, families, slice_map
from strategies.aggregation.nested_mean import NestedMean
from strategies.aggregation.update import Update

PROJECT = Path(__file__).parents[2]
README = (PROJECT / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
TWIN, FEDROLEX, OWN_SERVER = EXAMPLES[1:]
COPIED = {
    *("client_app", "conf", "data", "inference", "models", "nestfl", "protocol", "server_app"),
    *("strategies", "tests", "training", "LICENSE", "README.md", "pyproject.toml"),
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
    """What the README says, in one line, where it says this."""
    text = re.sub(r"\s+", " ", README)
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
    """What a script prints that runs in the copy, and sees nothing but the copy."""
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
    built, averaged = EXAMPLES[0].split("\n\nwhere = ")
    exec(built, names)
    before = {name: tensor.clone() for name, tensor in names["full"].state_dict().items()}
    exec(f"where = {averaged}", names)
    assert names["early"].shape == (2, 10)
    after = names["full"].state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


# --- a network of your own -------------------------------------------------------------------


def save_twin(checkout: Path, code: str = TWIN) -> tuple[Path, str]:
    """Save the network and its file of conf/; where its import goes, and the import."""
    (checkout / said(r"save it as `(models/\w+\.py)`")).write_text(code)
    conf, line = re.findall(r"add `(conf/model/\w+\.yaml)` with the\s+line `([^`]+)`", README)[0]
    (checkout / conf).write_text(f"{line}\n")
    where, what = (
        said(r"to `(models/__init__\.py)`"),
        said(r"add `(from models import \w+ as \w+)`"),
    )
    return checkout / where, what


def first(lines: list[str]) -> int:
    return next(n for n, line in enumerate(lines) if line.startswith("from models"))


def last(lines: list[str]) -> int:
    return len(lines)


def beside_the_others(lines: list[str]) -> int:
    return 1 + max(n for n, line in enumerate(lines) if line.startswith("from models import "))


def add_line(file: Path, line: str, place: Callable[[list[str]], int]) -> None:
    lines = file.read_text().splitlines()
    lines.insert(place(lines), line)
    file.write_text("\n".join(lines) + "\n")


IMPORTS = "from models.families import SlicedNetwork, Walk, register\nfrom models.slicing import "
SHORT_IMPORTS = "from models import SlicedNetwork, Walk, register\nfrom models import "


@pytest.mark.parametrize(
    ("place", "code"),
    [
        (first, TWIN),
        (beside_the_others, TWIN),
        (last, TWIN),
        (beside_the_others, TWIN.replace(IMPORTS, SHORT_IMPORTS)),
        (last, TWIN.replace(IMPORTS, SHORT_IMPORTS)),
    ],
)
def test_a_users_own_network_is_found_wherever_it_is_imported(
    checkout: Path, place: Callable[[list[str]], int], code: str
) -> None:
    file, line = save_twin(checkout, code)
    add_line(file, line, place)
    script = "from models import Slice, build; print(build('twin', 10, slice=Slice(width=0.5)))"
    assert "in_features=24" in python(checkout, script)


def test_a_users_own_network_trains(checkout: Path) -> None:
    """From pre-trained weights too, and in levels of ScaleFL."""
    file, line = save_twin(checkout)
    add_line(file, line, beside_the_others)
    command = said(r"`nestfl run (model=twin[^`]*)`")
    script = f"""{FEDERATE}
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


def test_every_key_of_a_users_own_network_can_be_set(checkout: Path) -> None:
    """A file with one line in conf/ is enough, for what the constructor takes as well."""
    with_option = TWIN.replace("slice: Slice) -> None", "slice: Slice, bias: bool = True) -> None")
    file, line = save_twin(checkout, with_option)
    add_line(file, line, beside_the_others)
    script = """
from server_app.config.composing import ConfigError, compose
config = compose("model=twin strategy=heterofl")
assert (config.model.weights, dict(config.model.options)) == (None, {})
config = compose("model=twin strategy=heterofl model.weights=a.pt model.bias=false")
assert (config.model.weights, dict(config.model.options)) == ("a.pt", {"bias": False})
try:
    compose("model=twin strategy=heterofl model.norm=gn")
except ConfigError as error:
    print(error)
"""
    assert python(checkout, script) == ("no key 'norm' in model; choose from bias, name, weights\n")


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


def save_fedrolex(checkout: Path) -> None:
    """Add a method as the README says: one Python file, one line of the registry, one YAML."""
    (checkout / said(r"Save it as `(strategies/methods/\w+\.py)`")).write_text(FEDROLEX)
    registry = checkout / said(r"to `(strategies/registry\.py)`")
    line = said(r'add the line `(".*?",)` to')
    text = registry.read_text()
    registry.write_text(text.replace("METHODS = {\n", f"METHODS = {{\n    {line}\n"))
    (settings,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    (checkout / said(r"save this as `(conf/strategy/\w+\.yaml)`")).write_text(settings)


def test_a_users_own_strategy_trains(checkout: Path) -> None:
    save_fedrolex(checkout)
    command = said(r"`nestfl run (strategy=fedrolex strategy.step=2)`")
    script = f"""{FEDERATE}
trained = federate({command!r}, "run")
assert type(trained).__name__ == "FedRolex"
assert trained.window_of(0, round=3).seed == 6
try:
    compose("strategy=fedrolex strategy.beta=1")
except ValueError as error:
    assert "no key 'beta' in strategy; " in str(error) and "step" in str(error), error
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


@pytest.mark.processes
def test_nestfl_run_trains_a_users_own_network_with_a_users_own_strategy(checkout: Path) -> None:
    file, line = save_twin(checkout)
    add_line(file, line, beside_the_others)
    save_fedrolex(checkout)
    command = "from nestfl.cli import app; app()"
    done = subprocess.run(
        [sys.executable, "-c", command, "run", "model=twin", "strategy=fedrolex",
         *SHORT_RUN.split(), "output=runs", "name=mine"],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert (checkout / "runs" / "mine" / "summary.json").is_file()


@pytest.mark.parametrize("page", sorted(PROJECT.glob("docs/**/*.md")), ids=lambda page: page.name)
def test_files_that_the_docs_name_are_there(page: Path) -> None:
    named = set(re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|yaml|sh|md))`", page.read_text()))
    named = {file for file in named if "NAME" not in file}
    assert [file for file in sorted(named) if not (PROJECT / file).exists()] == []
