"""The recipes of CIS's tables: nodes, exits, data, settings, and that they run scaled down."""

from __future__ import annotations

from pathlib import Path

import pytest

from data.clients import client_data
from server_app import app as server
from server_app.config.choices import choices
from server_app.config.composing import compose
from server_app.record.run_record import RunRecord
from strategies.methods.serving_rate.serving_rate import ServingRateSettings
from tests.support.grids import InProcessGrid

LAYERS = {
    "table1": (1 / 3, 1 / 3, 1 / 3),
    "table2": (0.034, 0.199, 0.767),
    "table4": (1 / 3, 1 / 3, 1 / 3),
    "table5": (0.143, 0.286, 0.571),
    "table6": (0.034, 0.199, 0.767),
}
"""The shares of the data that devices, edge servers and the cloud have."""
RECIPES = [*LAYERS, *(f"{table}_cifar100" for table in LAYERS if table != "table4")]


def test_every_table_has_a_recipe() -> None:
    recipes = [name for name in choices("experiment") if name.startswith("cis_")]
    assert recipes == sorted(f"cis_{name}" for name in RECIPES)


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_are_the_paper_s(recipe: str) -> None:
    config = compose(f"experiment=cis_{recipe}")
    fleet, dataset, train = config.fleet, config.dataset, config.train
    assert config.model.name == "resnet18"
    assert isinstance(config.strategy, ServingRateSettings)
    exits = (5, 7, 8) if recipe.endswith("cifar100") else (2, 5, 8)
    assert config.strategy.splits == tuple((unit, 1.0) for unit in exits)
    assert fleet.clients == config.clients_per_round == (17 if "table4" in recipe else 7)
    shares = dataset.shares or ()
    of_layer = [
        sum(share for node, share in zip(fleet.nodes, shares, strict=True) if node.exit == layer)
        for layer in (1, 2, 3)
    ]
    expected = LAYERS[recipe.partition("_")[0]]
    assert [each / sum(shares) for each in of_layer] == pytest.approx(expected, abs=6e-4)
    assert (config.rounds, train.batch_size, train.lr, train.momentum) == (100, 128, 0.1, 0.9)
    assert (train.weight_decay, train.schedule, dataset.validation) == (5e-4, "cosine", 0.1)


@pytest.mark.parametrize("weights", ["equal", "balanced"])
@pytest.mark.parametrize("recipe", ["table1", "table2_cifar100", "table4"])
def test_recipes_run_scaled_down(recipe: str, weights: str, tmp_path: Path) -> None:
    config = compose(
        f"experiment=cis_{recipe} scale=small strategy.weights={weights} output={tmp_path} name=r "
        "rounds=1 report=false"
    )
    server.run(InProcessGrid(config.fleet.clients), config)
    (line,) = RunRecord(tmp_path / "r").metrics()
    assert 0 <= line["cis"] <= 1
    assert client_data(config.dataset, 0).train.labels.numel() > 0
