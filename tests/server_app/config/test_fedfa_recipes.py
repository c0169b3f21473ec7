"""The recipes of FedFA's tables: architectures, settings, and that they run scaled down."""

from __future__ import annotations

from pathlib import Path

import pytest

from data.clients import client_data
from server_app import app as server
from server_app.config.choices import choices
from server_app.config.composing import Config, compose
from server_app.record.run_record import RunRecord
from strategies.levels.cost import price_of
from strategies.method_settings import PlannedSettings
from strategies.methods.choosing.choosing import ChoiceSettings
from tests.support.grids import InProcessGrid

MILLIONS = {
    "table1_preresnet": (17.4, 36.3, 68.5),
    "table1_mobilenet_v2": (2.35, 3.87, 7.14),
    "table1_efficientnet_v2": (3.06, 5.51, 10.13),
}
"""Parameters of the smallest architecture, of its widths with all blocks, and of the largest."""
METHODS = ("fedfa", "fedfa_depth", "fedfa_width", "flexifed", "heterofl", "nefl")
CHOICES = {
    ("table1_preresnet", "both"): 4**8,
    ("table1_mobilenet_v2", "both"): 4**4 * 2 * 2 * 3 * 4**4,
    ("table1_efficientnet_v2", "both"): 4**5 * 2 * 3 * 4**4,
    **{(recipe, "depth"): 4**4 for recipe in ("table1_preresnet", "table1_mobilenet_v2")},
    ("table1_efficientnet_v2", "depth"): 4**5,
    ("table3_transformer", "both"): 4 * 4,
    ("table3_transformer", "depth"): 4,
}
"""The architectures of Table 5."""


def sizes(config: Config) -> tuple[float, float]:
    """Return the parameters of the smallest architecture and of the largest."""
    strategy, task = config.strategy, config.task
    if isinstance(strategy, ChoiceSettings):
        offered = strategy.candidates(task)
        ends = (offered.smallest, offered.largest)
        return price_of(task, ends[0], "parameters"), price_of(task, ends[1], "parameters")
    assert isinstance(strategy, PlannedSettings)
    levels = strategy.plan(task, config.fleet.budgets, early_exits=False)
    assert len(levels) == len(config.fleet.budgets)
    return levels[0].cost.parameters, levels[-1].cost.parameters


def test_every_table_and_network_has_a_recipe() -> None:
    recipes = [name for name in choices("experiment") if name.startswith("fedfa_table")]
    assert recipes == sorted(f"fedfa_{each}" for each in [*MILLIONS, "table3_transformer"])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("recipe", MILLIONS)
def test_rows_that_are_compared_have_the_same_architectures(recipe: str, method: str) -> None:
    config = compose(f"experiment=fedfa_{recipe} strategy={method}")
    assert config.model.name == recipe.partition("_")[2]
    assert config.model.options["norm"] == "bn-static"
    small, middle, large = (1e6 * each for each in MILLIONS[recipe])
    ends = {"depth": (small, middle), "width": (middle, large), "both": (small, large)}
    flexible = {"fedfa_depth": "depth", "flexifed": "depth", "fedfa_width": "width"}
    kind = {**flexible, "heterofl": "width"}.get(method, "both")
    # One share for all stages is not quite MobileNetV2's and EfficientNetV2's smallest.
    assert sizes(config) == pytest.approx(ends[kind], rel=0.04)
    if isinstance(config.strategy, ChoiceSettings):
        assert (config.strategy.flexible, config.strategy.smallest) == (kind, 0.5)
        assert config.strategy.choose == ("largest" if method == "fedfa_width" else "zico")
    assert config.strategy.masked_loss  # type: ignore[attr-defined]


@pytest.mark.parametrize(("recipe", "flexible"), CHOICES)
def test_clients_choose_from_the_architectures_of_table_5(recipe: str, flexible: str) -> None:
    method = "fedfa" if flexible == "both" else "flexifed"
    config = compose(f"experiment=fedfa_{recipe} strategy={method}")
    assert isinstance(config.strategy, ChoiceSettings)
    assert len(config.strategy.candidates(config.task)) == CHOICES[recipe, flexible]


@pytest.mark.parametrize(
    ("recipe", "dataset", "rounds", "examples", "classes"),
    [
        ("table1_preresnet", "cifar10", 200, (100, 250), 2),
        ("table1_mobilenet_v2", "cifar100", 250, (250, 500), 20),
        ("table1_efficientnet_v2", "fashion-mnist", 150, (100, 250), 2),
    ],
)
def test_a_recipe_has_the_settings_of_table_6(
    recipe: str, dataset: str, rounds: int, examples: tuple[int, int], classes: int
) -> None:
    config = compose(f"experiment=fedfa_{recipe}")
    assert (config.rounds, config.fleet.clients, config.clients_per_round) == (rounds, 100, 10)
    assert [tier.clients for tier in config.fleet.tiers] == [50, 50]
    train = config.train
    assert (train.epochs, train.batch_size, train.lr, train.schedule) == (5, 50, 0.1, "constant")
    assert (train.momentum, train.weight_decay) == (0.9, 1e-4)
    assert config.weighting == "examples"
    data = config.dataset
    assert (data.name, data.partition, data.local_test) == (dataset, "uneven", "global")
    assert (data.examples_per_client, data.classes_per_client) == (examples, classes)


@pytest.mark.parametrize("method", METHODS)
def test_all_rows_of_table_3_have_the_transformer(method: str) -> None:
    config = compose(f"experiment=fedfa_table3_transformer strategy={method}")
    assert (config.model.name, config.rounds, config.fleet.clients) == ("transformer", 200, 100)
    assert not config.strategy.masked_loss  # type: ignore[attr-defined]
    largest = {"fedfa_depth": 3.89, "flexifed": 3.89, "fedfa_width": 3.82}.get(method, 3.91)
    assert sizes(config)[1] == pytest.approx(1e6 * largest, rel=0.002)


@pytest.mark.parametrize("method", ["fedfa", "fedfa_width", "nefl"])
@pytest.mark.parametrize("recipe", MILLIONS)
def test_rows_have_architectures_of_a_small_network_scaled_down(recipe: str, method: str) -> None:
    config = compose(f"experiment=fedfa_{recipe} strategy={method} scale=small")
    assert config.model.name == f"{recipe.partition('_')[2]}-mini"
    assert (config.rounds, config.fleet.clients, config.dataset.name) == (2, 8, "digits")
    small, large = sizes(config)
    assert small < large < 1e6


@pytest.mark.parametrize(
    ("recipe", "method", "more"),
    [
        ("table1_preresnet", "fedfa", "dataset.partition=classes"),
        ("table3_transformer", "fedfa_depth", "dataset.max_train=80 dataset.max_test=8"),
    ],
)
def test_a_row_runs_scaled_down(recipe: str, method: str, more: str, tmp_path: Path) -> None:
    row = f"experiment=fedfa_{recipe} strategy={method} scale=small {more}"
    tiny = "rounds=1 fleet.clients=4 strategy.trials=2 report=false"
    config = compose(f"{row} {tiny} output={tmp_path} name=run")
    federated = server.run(InProcessGrid(4), config)
    (line,) = RunRecord(tmp_path / "run").metrics()
    assert line["clients"]["replied"] == 4
    assert len(line["levels"]) == len(federated.levels) >= 2
    assert line["personal"].keys() >= {"accuracy", "levels"}
    if recipe == "table1_preresnet":
        data = client_data(config.dataset, 3)
        assert len(data.train.labels.unique()) == 2
        assert 25 <= len(data.train) <= 50
