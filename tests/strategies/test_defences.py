"""Every method with every defence: a round of clients with noise, one of them with far more."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from torch import Tensor

from protocol.reports import Trained
from server_app.building import strategy_of
from server_app.config.composing import ConfigError, compose
from strategies.aggregation.aggregators import AggregationConfig
from strategies.federation import FederationError
from strategies.methods.serving_rate.serving_rate import UNWEIGHTED
from strategies.round import NestedStrategy
from tests.support.federations import SMALL
from tests.support.grids import InProcessGrid
from tests.support.toy_networks import same

LIAR, TIMES = 3, 1e3
METHODS = (
    *("fedavg", "decoupled", "heterofl", "heterofl strategy.own_classes=true", "scalefl"),
    *("nefl", "fjord model.norm=bn-running", "depthfl", "depthfl strategy.alpha=0.1"),
    *("fedfa strategy.choose=largest", "flexifed strategy.choose=largest"),
    "serving_rate fleet=cis_figure2",
    "feddf strategy.distillation.steps=2",
)
DEFENCES = {
    "norm-bound": AggregationConfig("norm-bound", {"times": 0.5}),
    "clipped": AggregationConfig("clipped", {"times": 0.5}),
    "clipped to the median": AggregationConfig("clipped", {"of": "median"}),
    "trimmed-mean": AggregationConfig("trimmed-mean", {"trim": 0.3}),
    "median": AggregationConfig("median"),
    "clipped, then the median": AggregationConfig("clipped", {"inner": "median"}),
}


class NoisyGrid(InProcessGrid):
    """Clients add noise to their slice in place of training: the liar far too much."""

    def __init__(self, shuffle: int | None = None, liar: int = LIAR) -> None:
        super().__init__(4, shuffle=shuffle)
        self.liar = liar

    def answer(self, message: Message) -> Message | None:
        if message.metadata.message_type != "train":
            return super().answer(message)
        client = list(self.contexts).index(message.metadata.dst_node_id)
        arrays = {
            kind: array.numpy() for kind, array in message.content.array_records["arrays"].items()
        }
        weights = arrays["float32"]
        noise = np.random.default_rng(client).normal(0, 1e-3, weights.size).astype(np.float32)
        arrays["float32"] = weights + (TIMES if client == self.liar else 1) * noise
        record = ArrayRecord({kind: Array(array) for kind, array in arrays.items()})
        report = Trained(1, loss=1.0, seconds=0.0, classes=(0, 1, 2)).record()
        return Message(RecordDict({"arrays": record, "metrics": report}), reply_to=message)


@cache
def prepared(method: str) -> tuple[NestedStrategy, dict[str, Tensor]]:
    """Return a method with its clients, and its first state."""
    config = compose(f"{SMALL} output=unused rounds=1 strategy={method}")
    strategy = strategy_of(config)
    strategy._open(NoisyGrid(), None)
    return strategy, dict(strategy.state)


def with_defence(method: str, defence: AggregationConfig) -> NestedStrategy:
    strategy, start = prepared(method)
    strategy.federation = replace(strategy.federation, aggregation=defence)
    strategy.state, strategy.round, strategy.tally.refused = (
        start,
        0,
        type(strategy.tally.refused)(),
    )
    if hasattr(strategy, "drift"):
        strategy.drift = {}
    return strategy


@pytest.mark.parametrize("defence", DEFENCES)
@pytest.mark.parametrize("method", METHODS)
def test_every_defence_composes_with_every_method(method: str, defence: str) -> None:
    chosen = DEFENCES[defence]
    if "alpha" in method and not chosen.averages:
        pytest.skip("FedDyn needs the mean, and says so: see below")
    if "serving_rate" in method and chosen.innermost.name in UNWEIGHTED:
        pytest.skip("its exits count differently, and it says so: see its own tests")
    strategy = with_defence(method, chosen)
    start = dict(strategy.state)
    strategy.train_round(1, NoisyGrid())
    after = dict(strategy.state)
    refused = {"norm-bound": 1} if defence == "norm-bound" else {}
    assert strategy.tally.refused == refused
    assert strategy.tally.accepted == 4 - len(refused)
    assert not same(after, start)
    assert all(tensor.isfinite().all() for tensor in after.values())

    again = with_defence(method, chosen)
    again.train_round(1, NoisyGrid(shuffle=5))
    assert same(dict(again.state), after)  # whatever the order of replies

    flowers = with_defence(method, chosen)
    grid = NoisyGrid()
    messages = flowers.configure_train(1, flowers.arrays(), ConfigRecord(), grid)
    record, _ = flowers.aggregate_train(1, grid.send_and_receive(messages))
    assert same(dict(record.to_torch_state_dict()), after)


@pytest.mark.parametrize("defence", DEFENCES)
def test_a_liar_moves_a_defended_model_far_less_than_the_mean(defence: str) -> None:
    def moved(aggregation: AggregationConfig) -> float:
        strategy = with_defence("fedavg", aggregation)
        start = strategy.state
        strategy.train_round(1, NoisyGrid())
        return float((strategy.state["conv1.weight"] - start["conv1.weight"]).norm())

    plain, defended = moved(AggregationConfig()), moved(DEFENCES[defence])
    assert defended < plain * (0.8 if defence == "clipped" else 0.02)


def test_a_refusal_names_the_norm_and_the_bound_and_counts_as_no_reply() -> None:
    strategy = with_defence("heterofl", AggregationConfig("norm-bound", {"bounds": [1, 1, 1, 1]}))
    strategy.train_round(1, NoisyGrid())
    clients = strategy.tally.metrics()["clients"]
    assert clients["refused"] == {"norm-bound": 1}
    assert clients["replied"] == 3
    (problem,) = clients["problems"].values()
    assert problem.startswith("norm-bound: the update's norm is ")
    assert problem.endswith("above the bound of level 4 (1)")
    strict = with_defence("heterofl", AggregationConfig("norm-bound", {"bounds": [1e-9] * 4}))
    with pytest.raises(FederationError, match=r"0 of 4 clients gave a usable reply.*4 norm-bound"):
        strict.train_round(1, NoisyGrid())


def test_levels_have_a_bound_each_or_the_run_does_not_begin() -> None:
    with pytest.raises(
        ValueError, match=r"aggregation: bounds are \[1, 2\]: expected one for each of 4"
    ):
        strategy_of(
            compose(f"{SMALL} output=unused aggregation=norm_bound aggregation.bounds=[1,2]")
        )


@pytest.mark.parametrize("aggregation", ["clipped", "trimmed_mean", "median"])
def test_feddyn_with_what_is_no_mean_is_an_error_that_names_the_choices(aggregation: str) -> None:
    feddyn = f"{SMALL} strategy=depthfl strategy.alpha=0.1"
    with pytest.raises(
        ConfigError, match="choose aggregation nested_mean or norm_bound, or alpha 0"
    ):
        compose(f"{feddyn} aggregation={aggregation}")
    with pytest.raises(ConfigError, match="needs the mean of what clients sent"):
        compose(f"{feddyn} aggregation=norm_bound aggregation.inner=median")
    compose(f"{feddyn} aggregation=norm_bound")


def test_a_round_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    strategy = with_defence("fedavg", DEFENCES["median"])
    strategy.train_round(1, NoisyGrid())
    assert list(tmp_path.iterdir()) == []
    assert not [fd for fd in Path("/proc/self/fd").iterdir() if str(tmp_path) in _target(fd)]


def _target(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink())
    except OSError:  # the one that lists them
        return ""
