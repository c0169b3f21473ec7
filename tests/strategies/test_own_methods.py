"""A user's own method: its server half's results and state are checked in every round."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import plugins
from server_app.app import run
from server_app.config.composing import compose
from strategies.federation import FederationError
from tests.support.federations import Federate, federate_in
from tests.support.grids import InProcessGrid
from tests.support.own_code import METHOD, saved

pytestmark = pytest.mark.usefixtures("no_plugins_left")

STEP = """
    def server_step(self, state, previous):
        {}
"""
MOMENTUM = """
    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.v, self.rounds, self._draws = {}, 0, torch.ones(2)
        self.limits = {"least": torch.zeros(3)}

    def server_step(self, state, previous):
        for name in state:
            self.v[name] = self.v.get(name, 0) * 0.5 + state[name] - previous[name]
        self.rounds += 1
        self._draws *= 2
        return {name: previous[name] + v.to(previous[name].dtype) for name, v in self.v.items()}
"""
KEPT = """
    def state_dict(self):
        velocity = {f"v.{name}": tensor for name, tensor in self.v.items()}
        return super().state_dict() | velocity | {
            "steps": torch.tensor(self.rounds), "doubled": self._draws.clone(),
        }
"""
TAKEN = """
    def load_state_dict(self, tensors):
        super().load_state_dict(tensors)
        own = {name: t for name, t in tensors.items() if name.startswith("v.")}
        self.v = {name.removeprefix("v."): tensor for name, tensor in own.items()}
        self.rounds, self._draws = int(tensors["steps"]), tensors["doubled"]
"""
RUN = "strategy=rolling strategy.widths=[0.5,1.0] strategy.ratios=null"


@pytest.fixture
def federate(tmp_path: Path) -> Federate:
    (tmp_path / "runs").mkdir()
    return federate_in(tmp_path / "runs")


def load(folder: Path, *parts: str) -> None:
    """Load the method of METHOD with more in its class."""
    plugins.load(saved(folder, "".join(["import torch\n", METHOD, *parts])))


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The attributes that were warned of."""
    told = [text for text in caplog.messages if "and is not in its state" in text]
    assert all("state_dict" in text and "strategy rolling: " in text for text in told)
    return [text.partition("its attribute ")[2].split()[0] for text in told]


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ("state.pop('linear.bias')", "returned no linear.bias: expected all tensors"),
        ("previous.pop('linear.bias'); state.pop('linear.bias')", "returned no linear.bias"),
        ("del state['linear.bias'], state['linear.weight']", "no linear.weight and 1 more"),
        ("state['x'] = state['linear.bias']", "returned x, which the state before has not"),
        ("state['linear.bias'] *= float('nan')", "linear.bias with 10 of 10 values that are NaN"),
        ("state['linear.bias'][3] = float('inf')", "linear.bias with 1 of 10 values that are NaN"),
        (
            "state['linear.bias'] = state['linear.bias'].double()",
            r"linear.bias as float64 \[10\]: expected float32 \[10\]",
        ),
        (
            "state['linear.bias'] = state['linear.bias'][:3]",
            r"linear.bias as float32 \[3\]: expected float32 \[10\]",
        ),
        ("state['linear.bias'] = 0.5", "linear.bias as float: expected a tensor"),
        ("return None", "returned NoneType: expected the next global state"),
    ],
)
def test_a_wrong_state_is_refused_before_anything_is_written(
    step: str, told: str, tmp_path: Path, federate: Federate
) -> None:
    load(tmp_path, STEP.format(f"{step}; return state" if "return" not in step else step))
    with pytest.raises(FederationError, match=f"^round 1: server_step of rolling .*{told}"):
        federate(f"{RUN} name=wrong")
    directory = tmp_path / "runs" / "wrong"
    assert not list((directory / "checkpoints").glob("*"))
    assert not (directory / "metrics.jsonl").exists()


def test_attributes_that_change_and_are_not_kept_are_named_once(
    tmp_path: Path, federate: Federate, caplog: pytest.LogCaptureFixture
) -> None:
    load(tmp_path, MOMENTUM)
    federate(f"{RUN} rounds=3")
    assert warned(caplog) == ["_draws", "rounds", "v"]


def test_what_is_kept_is_not_warned_of_whatever_its_key_and_a_resumed_run_ends_alike(
    tmp_path: Path, federate: Federate, caplog: pytest.LogCaptureFixture
) -> None:
    load(tmp_path, MOMENTUM, KEPT, TAKEN)
    whole, _ = federate(f"{RUN} rounds=3 name=whole")
    federate(f"{RUN} rounds=3 name=half checkpoint.keep=9")
    half = tmp_path / "runs" / "half"
    start = next((half / "checkpoints").glob("*1*.safetensors"))
    resumed = run(InProcessGrid(4), compose(f"resume={start}"))
    assert warned(caplog) == []
    assert all(torch.equal(whole.state[name], resumed.state[name]) for name in whole.state)
    assert resumed.rounds == 3  # type: ignore[attr-defined]


def test_the_method_of_the_guide_goes_on_with_its_momentum(
    tmp_path: Path, federate: Federate, caplog: pytest.LogCaptureFixture
) -> None:
    guide = Path(__file__).parents[2] / "docs" / "your-network.md"
    _, _, section = guide.read_text().partition("### State of its own\n")
    lines = section.partition("\n- ")[0].splitlines()
    load(tmp_path, "\n".join(line for line in lines if line.startswith("    ") or not line[:1]))
    whole, _ = federate(f"{RUN} rounds=3 name=whole checkpoint.keep=9")
    start = next((tmp_path / "runs" / "whole" / "checkpoints").glob("*1*.safetensors"))
    copy = tmp_path / "runs" / "copy"
    shutil.copytree(start.parents[1], copy)
    for later in [*copy.glob("checkpoints/*2*"), *copy.glob("checkpoints/*3*")]:
        later.unlink()
    resumed = run(InProcessGrid(4), compose(f"resume={copy}"))
    assert warned(caplog) == []
    assert all(torch.equal(whole.state[name], resumed.state[name]) for name in whole.state)


def test_what_is_kept_but_not_taken_back_is_warned_of(
    tmp_path: Path, federate: Federate, caplog: pytest.LogCaptureFixture
) -> None:
    load(tmp_path, MOMENTUM, KEPT)
    federate(f"{RUN} rounds=1")
    assert warned(caplog) == ["_draws", "rounds", "v"]


def test_what_a_shipped_method_keeps_is_not_warned_of_in_a_subclass(
    tmp_path: Path, federate: Federate, caplog: pytest.LogCaptureFixture
) -> None:
    code = """
from strategies.methods.depthfl import DepthFL
from strategies.registry import register_method


@register_method("mine")
class Mine(DepthFL):
    def server_step(self, state, previous):
        self.drift = dict(self.drift)
        return super().server_step(state, previous)
"""
    plugins.load(saved(tmp_path, code))
    strategy, _ = federate("strategy=mine strategy.alpha=0.1 model.norm=null rounds=1")
    assert strategy.drift  # type: ignore[attr-defined]
    assert warned(caplog) == []
