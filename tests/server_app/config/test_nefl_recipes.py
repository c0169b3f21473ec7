"""The recipes of NeFL's tables: their submodels and settings, and that they run scaled down."""

from __future__ import annotations

from pathlib import Path

import pytest

from server_app import app as server
from server_app.config.choices import choices
from server_app.config.composing import Config, compose
from server_app.record.run_record import RunRecord
from strategies.levels.planning import Level
from strategies.method_settings import PlannedSettings
from strategies.methods.heterofl import HeteroFLSettings
from tests.support.grids import InProcessGrid

FIVE, STEEP = (0.2, 0.4, 0.6, 0.8, 1.0), (0.04, 0.16, 0.36, 0.64, 1.0)
RECIPES = {
    **{f"table{table}_resnet{depth}": FIVE for table in (1, 2, 4) for depth in (18, 34)},
    "table3_vit_b_16": (0.5, 0.75, 1.0),
    "table3_wide_resnet101_2": (0.5, 0.75, 1.0),
    "table5_resnet18": FIVE,
    **{f"table6_resnet{depth}": FIVE for depth in (18, 34, 56, 110)},
    "table9_resnet110": STEEP,
}
"""Shares of the parameters in the submodels of each recipe."""
ROWS = [
    (recipe, method)
    for recipe in RECIPES
    if "table3" not in recipe
    for method in ("nefl", "heterofl", "fjord", "depthfl")
]
VARIANTS = ("resnet18_d", "resnet18_do", "resnet18_wd", "five_w")
RUN = [
    *(("table3_vit_b_16", "nefl", ""), ("table3_wide_resnet101_2", "nefl", "")),
    ("table6_resnet56", "nefl", "submodels=resnet56_do"),
    ("table6_resnet56", "nefl", "submodels=resnet56_wd strategy.steps=constant"),
    *((recipe, method, "") for recipe in ("table1_resnet18",) for method in ("fjord", "depthfl")),
    ("table2_resnet18", "heterofl", ""),
]


def planned(config: Config) -> list[Level]:
    """Return the levels of a config, without the network's weights."""
    assert isinstance(config.strategy, PlannedSettings)
    return config.strategy.plan(config.task, config.fleet.budgets, early_exits=False)


def test_every_table_and_network_has_a_recipe() -> None:
    recipes = [name for name in choices("experiment") if name.startswith("nefl_table")]
    assert recipes == sorted(f"nefl_{recipe}" for recipe in RECIPES)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipes_submodels_have_their_sizes(recipe: str) -> None:
    config = compose(f"experiment=nefl_{recipe} model.weights=null")
    assert config.model.name == recipe.partition("_")[2]
    assert config.strategy.name == "nefl"
    levels = planned(config)
    found = [level.cost.parameters / levels[-1].cost.parameters for level in levels]
    assert found == pytest.approx(RECIPES[recipe], abs=0.045)  # ResNet-34-WD 0.6 is 0.559
    assert len(levels) == len(config.fleet.budgets)


@pytest.mark.parametrize(("recipe", "method"), ROWS)
def test_the_rows_of_a_table_have_levels_for_its_fleet(recipe: str, method: str) -> None:
    config = compose(f"experiment=nefl_{recipe} strategy={method}")
    assert config.fleet.budgets == RECIPES[recipe]
    strategy = config.strategy
    assert isinstance(strategy, PlannedSettings)
    if method in ("heterofl", "fjord"):
        squares = [width**2 for width in strategy.widths or ()]
        assert squares == pytest.approx(RECIPES[recipe], abs=2e-3)
        assert strategy.rounding == "ceil"


def test_the_tables_have_the_papers_settings() -> None:
    config = compose("experiment=nefl_table1_resnet18")
    assert (config.rounds, config.fleet.clients, config.clients_per_round) == (500, 100, 10)
    assert (config.fleet.spread, config.dataset.partition) == (2, "iid")
    train = config.train
    assert (train.epochs, train.batch_size, train.lr) == (5, 32, 0.1)
    assert (train.momentum, train.weight_decay, train.milestones) == (0, 0, (250, 375))
    skewed = compose("experiment=nefl_table2_resnet18").dataset
    assert (skewed.partition, skewed.alpha) == ("dirichlet", 0.5)
    assert compose("experiment=nefl_table4_resnet34").dataset.name == "cifar100"


def test_the_pretrained_networks_warm_up_and_have_three_tiers_that_stay() -> None:
    config = compose("experiment=nefl_table3_vit_b_16")
    assert config.model.weights == "torchvision:ViT_B_16_Weights.IMAGENET1K_V1"
    assert (config.rounds, config.fleet.clients, config.fleet.spread) == (100, 10, 0)
    assert [tier.clients for tier in config.fleet.tiers] == [3, 3, 4]
    train = config.train
    assert (train.epochs, train.lr, train.schedule, train.warmup) == (1, 0.03, "cosine", 500)
    assert train.clip == 1


def test_the_rows_of_the_ablation_are_choices_of_submodels() -> None:
    configs = [compose(f"experiment=nefl_table6_resnet18 submodels={each}") for each in VARIANTS]
    rows = [config.strategy for config in configs]
    assert len(set(rows)) == len(VARIANTS)
    assert [len(planned(config)) for config in configs] == [5] * len(VARIANTS)


@pytest.mark.parametrize("depth", [18, 34, 56])
def test_what_the_paper_runs_as_depthfl_is_a_row(depth: int) -> None:
    row = "strategy=nefl_nl submodels=none strategy.cut=prefix"
    levels = planned(compose(f"experiment=nefl_table6_resnet{depth} {row}"))
    shares = [level.cost.parameters / levels[-1].cost.parameters for level in levels]
    assert all(share <= 1.1 * ratio for share, ratio in zip(shares, FIVE, strict=True))


def test_heterofl_is_run_as_the_paper_runs_it() -> None:
    strategy = compose("experiment=nefl_table2_resnet18 strategy=heterofl").strategy
    assert isinstance(strategy, HeteroFLSettings)
    assert not strategy.masked_loss
    assert not strategy.own_classes


@pytest.mark.parametrize(("recipe", "method", "more"), RUN)
def test_a_row_runs_scaled_down(recipe: str, method: str, more: str, tmp_path: Path) -> None:
    row = f"experiment=nefl_{recipe} strategy={method} scale=small {more}"
    small = compose(row)
    assert (small.rounds, small.dataset.name) == (2, "digits")
    config = compose(
        f"{row} rounds=1 fleet.clients=5 clients_per_round=5 dataset.max_train=80 "
        f"dataset.max_test=32 dataset.partition=iid output={tmp_path} name=run"
    )
    federated = server.run(InProcessGrid(5), config)
    (line,) = RunRecord(tmp_path / "run").metrics()
    assert line["clients"]["replied"] == 5
    assert len(line["levels"]) == len(federated.levels) == len(config.fleet.budgets)
