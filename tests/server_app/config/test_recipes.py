"""The recipes of conf/experiment: the papers' settings, and their scaled-down twins run."""

from __future__ import annotations

from pathlib import Path

import pytest

from server_app import app as server
from server_app.config.composing import choices, compose
from server_app.record.run_record import RunRecord
from strategies.methods.scalefl import ScaleFLSettings
from tests.support.grids import InProcessGrid

RECIPES = [name for name in choices("experiment") if name.startswith("scalefl_table")]
TWINS = [name for name in RECIPES if name.endswith("_small")]


def test_every_row_of_the_tables_has_a_recipe_and_a_twin() -> None:
    rows = {
        "table3_resnet110": ("fedavg", "decoupled", "heterofl", "scalefl"),
        "table3_msdnet24": ("fedavg", "heterofl", "scalefl"),
        "table4_efficientnet_b4": ("fedavg", "heterofl", "scalefl"),
        "table5_bert": ("fedavg", "heterofl", "scalefl"),
    }
    expected = [f"scalefl_{row}_{method}" for row, methods in rows.items() for method in methods]
    assert sorted(RECIPES) == sorted(expected + [f"{name}_small" for name in expected])


def test_the_columns_of_the_tables_are_overrides() -> None:
    recipe = "experiment=scalefl_table3_resnet110_scalefl"
    config = compose(f"{recipe} dataset=cifar100 dataset.alpha=1 dataset.partition=dirichlet")
    assert (config.dataset.name, config.dataset.alpha) == ("cifar100", 1.0)
    settings = config.rounds, config.fleet.clients, config.clients_per_round, config.train.epochs
    assert settings == (400, 100, 10, 5)
    assert compose(f"{recipe}").dataset.alpha == 100
    text = compose("experiment=scalefl_table5_bert_scalefl")
    assert (text.rounds, text.fleet.clients, text.clients_per_round) == (100, 50, 10)
    assert (text.train.lr, text.train.weight_decay) == (3e-5, 1e-4)
    assert isinstance(text.strategy, ScaleFLSettings)
    assert (text.strategy.beta, text.strategy.temperature) == (0.05, 3.0)


def test_bert_starts_from_the_published_weights_and_its_twin_from_chance() -> None:
    for method in ("fedavg", "heterofl", "scalefl"):
        recipe = f"experiment=scalefl_table5_bert_{method}"
        config, twin = compose(recipe), compose(f"{recipe}_small")
        published = "hub:google-bert/bert-base-uncased"
        assert config.model.weights == config.dataset.tokenizer == published
        assert twin.model.weights is twin.dataset.tokenizer is None


@pytest.mark.parametrize("name", TWINS)
def test_a_scaled_down_twin_runs(name: str, tmp_path: Path) -> None:
    config = compose(
        f"experiment={name} rounds=1 fleet.clients=4 dataset.max_train=64 dataset.max_test=32 "
        f"dataset.partition=iid output={tmp_path} name=run"
    )
    federated = server.run(InProcessGrid(4), config)
    (line,) = RunRecord(tmp_path / "run").metrics()
    assert line["clients"]["replied"] == 4
    levels = 1 if "fedavg" in name else 4
    assert len(line["levels"]) == len(federated.levels) == levels
    exits = line["levels"][str(levels)]["exits"]
    assert len(exits) == (levels if name.endswith("scalefl_small") else 1)
