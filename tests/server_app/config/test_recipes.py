"""The recipes of conf/experiment: rows of the papers' tables, which also run scaled down."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from server_app import app as server
from server_app.config.choices import _merge_per_strategy, choices
from server_app.config.composing import Config, ConfigError, compose
from server_app.record.run_record import RunRecord
from strategies.method_settings import PlannedSettings
from strategies.methods.feddf.ensemble_distillation import DistillationSettings
from strategies.methods.feddf.feddf import FedDFSettings
from strategies.methods.scalefl import ScaleFLSettings
from tests.support.grids import InProcessGrid

SPLITS = {
    "table3_resnet110": ((36, 0.7), (42, 0.7), (48, 0.75), (54, 1.0)),
    "table3_msdnet24": ((15, 0.65), (18, 0.7), (21, 0.85), (24, 1.0)),
    "table4_efficientnet_b4": ((22, 0.7), (24, 0.75), (27, 0.85), (32, 1.0)),
    "table5_bert": ((4, 0.4), (6, 0.55), (9, 0.75), (12, 1.0)),
}
"""Units and width of ScaleFL's levels."""
WIDTHS = {
    "table3_resnet110": (0.35, 0.5, 0.7, 1.0),
    "table3_msdnet24": (0.35, 0.5, 0.75, 1.0),
    "table4_efficientnet_b4": (0.33, 0.48, 0.7, 1.0),
    "table5_bert": (0.3, 0.45, 0.7, 1.0),
}
"""Of the levels of all other methods."""
ROWS = [
    *((recipe, method) for recipe in SPLITS for method in ("fedavg", "heterofl", "scalefl")),
    ("table3_resnet110", "decoupled"),
    ("table3_resnet110", "feddf"),
    ("table5_bert", "feddf"),
]
RUN = [
    *((recipe, "scalefl") for recipe in SPLITS),
    ("table3_resnet110", "decoupled"),
    ("table3_msdnet24", "fedavg"),
    ("table5_bert", "heterofl"),
    ("table3_resnet110", "feddf"),
    ("table5_bert", "feddf"),
]
"""Each network once, and each method once more."""


def planned(config: Config) -> PlannedSettings:
    assert isinstance(config.strategy, PlannedSettings)
    return config.strategy


def test_every_table_and_network_has_a_recipe() -> None:
    recipes = [name for name in choices("experiment") if name.startswith("scalefl_table")]
    assert recipes == sorted(f"scalefl_{recipe}" for recipe in SPLITS)


@pytest.mark.parametrize(("recipe", "method"), ROWS)
def test_a_row_has_the_levels_of_its_table(recipe: str, method: str) -> None:
    config = compose(f"experiment=scalefl_{recipe} strategy={method}")
    assert config.model.name == recipe.partition("_")[2]
    strategy = planned(config)
    assert (strategy.name, strategy.ratios) == (method, None)
    splits, widths = (SPLITS[recipe], None) if method == "scalefl" else (None, WIDTHS[recipe])
    assert (strategy.splits, strategy.widths) == (splits, widths)
    assert strategy.rounding == ("ceil" if method in ("heterofl", "feddf") else "floor")


@pytest.mark.parametrize(
    ("recipe", "rounds", "clients", "batch_size", "milestones"),
    [
        ("table3_resnet110", 400, 100, 16, (100, 200)),
        ("table3_msdnet24", 400, 100, 16, (100, 200)),
        ("table4_efficientnet_b4", 90, 50, 64, (30, 60)),
        ("table5_bert", 100, 50, 16, ()),
    ],
)
def test_a_recipe_has_the_settings_of_the_paper(
    recipe: str, rounds: int, clients: int, batch_size: int, milestones: tuple[int, ...]
) -> None:
    config = compose(f"experiment=scalefl_{recipe}")
    assert (config.rounds, config.fleet.clients, config.clients_per_round) == (rounds, clients, 10)
    train = config.train
    assert (train.epochs, train.batch_size, train.milestones) == (5, batch_size, milestones)
    assert (config.dataset.partition, config.dataset.alpha) == ("dirichlet", 100)


def test_scalefl_is_the_recipes_default_and_any_strategy_has_levels_in_them() -> None:
    recipe = "experiment=scalefl_table3_msdnet24"
    assert compose(recipe) == compose(f"{recipe} strategy=scalefl")
    assert planned(compose(f"{recipe} strategy=decoupled")).widths == WIDTHS["table3_msdnet24"]


def test_the_columns_of_the_tables_are_overrides() -> None:
    config = compose("experiment=scalefl_table3_resnet110 dataset=cifar100 dataset.alpha=1")
    assert (config.dataset.name, config.dataset.alpha) == ("cifar100", 1.0)


@pytest.mark.parametrize(
    ("recipe", "dataset", "other"),
    [
        ("table3_resnet110", "cifar10", "cifar100"),
        ("table3_resnet110", "cifar100", "cifar10"),
        ("table5_bert", "sst2", "ag-news"),
        ("table5_bert", "ag-news", "sst2"),
    ],
)
def test_feddf_distils_each_data_set_with_the_other_of_its_table(
    recipe: str, dataset: str, other: str
) -> None:
    config = compose(f"experiment=scalefl_{recipe} strategy=feddf dataset={dataset}")
    assert isinstance(config.strategy, FedDFSettings)
    unlabelled = config.strategy.unlabelled
    assert (unlabelled.source(config.dataset), unlabelled.max_examples) == (other, None)
    assert config.dataset.server is None  # clients have all of the data set, as in other rows
    assert config.strategy.distillation == DistillationSettings()
    assert (config.strategy.validation, config.strategy.drop_below_chance) == (0, False)


def test_bert_has_a_small_rate_and_scalefl_half_its_usual_beta_there() -> None:
    config = compose("experiment=scalefl_table5_bert")
    assert (config.train.lr, config.train.weight_decay) == (3e-5, 1e-4)
    assert isinstance(config.strategy, ScaleFLSettings)
    assert (config.strategy.beta, config.strategy.temperature) == (0.05, 3.0)


@pytest.mark.parametrize("method", ["fedavg", "heterofl", "scalefl"])
def test_bert_starts_from_the_published_weights_and_a_small_one_from_chance(method: str) -> None:
    recipe = f"experiment=scalefl_table5_bert strategy={method}"
    config, small = compose(recipe), compose(f"{recipe} scale=small")
    published = "hub:google-bert/bert-base-uncased"
    assert config.model.weights == config.dataset.tokenizer == published
    assert small.model.weights is small.dataset.tokenizer is None


def test_what_is_typed_wins_over_the_recipe_for_the_strategy_and_for_the_scale() -> None:
    levels = "strategy.splits=[[27,0.5],[54,1]] rounds=3 dataset=mnist"
    config = compose(f"{levels} scale=small experiment=scalefl_table3_resnet110")
    assert planned(config).splits == ((27, 0.5), (54, 1.0))
    assert (config.rounds, config.dataset.name) == (3, "mnist")


def test_an_unknown_strategy_in_a_recipe_is_answered_with_the_choices() -> None:
    config = OmegaConf.create({"strategy": {"name": "scalefl"}, "per_strategy": {"scalefI": {}}})
    with pytest.raises(ConfigError, match="no key 'scalefI' in per_strategy; did you mean scalefl"):
        _merge_per_strategy(config, {})


@pytest.mark.parametrize(("recipe", "method"), RUN)
def test_a_row_runs_scaled_down(recipe: str, method: str, tmp_path: Path) -> None:
    row = f"experiment=scalefl_{recipe} strategy={method} scale=small"
    small = compose(row)
    assert (small.rounds, small.fleet.clients, small.clients_per_round) == (2, 8, 4)
    assert small.dataset.name == ("docstrings" if recipe == "table5_bert" else "digits")
    config = compose(
        f"{row} rounds=1 fleet.clients=4 dataset.max_train=64 dataset.max_test=32 "
        f"dataset.partition=iid output={tmp_path} name=run"
    )
    federated = server.run(InProcessGrid(4), config)
    (line,) = RunRecord(tmp_path / "run").metrics()
    assert line["clients"]["replied"] == 4
    levels = 1 if method == "fedavg" else 4
    assert len(line["levels"]) == len(federated.levels) == levels
    exits = line["levels"][str(levels)]["exits"]
    assert len(exits) == (levels if method == "scalefl" else 1)
