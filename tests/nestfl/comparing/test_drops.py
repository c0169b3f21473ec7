"""Accuracy drops under attacks, worked out by hand, and their pairs of runs."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from nestfl.comparing.drops import drops_of
from nestfl.comparing.fairness import rivals
from nestfl.comparing.outcome import Outcome
from nestfl.comparing.result_tables import drop_table
from nestfl.comparing.results import Result, Target, grouped
from nestfl.comparing.trials import Trial, expand
from server_app.config.composing import compose

SWEEP = ("strategy=heterofl,fedavg", "fleet.attack.kind=none,shuffled-labels", "seed=0,1")


def result(trial: Trial, full: float, **more: Any) -> Result:
    levels = {"1": {"accuracy": 0.5}, "2": {"accuracy": full}}
    summary = {"rounds": 1, "levels": levels, "mean": (0.5 + full) / 2, "worst": 0.5, **more}
    return Result(trial, Path(trial.name), summary, [])


def attacked_halves(*overrides: str) -> list[Result]:
    """Return runs whose full model has 80 %, with seed 1 60 %, and under attack half of it."""
    found = []
    for trial in expand(overrides):
        clean = 0.6 if trial.seed == "1" else 0.8
        attacked = (
            trial.choices.get("fleet.attack.kind") != "none"
            and trial.choices.get("fleet.attack.share") != "0"
        )
        found.append(result(trial, clean / 2 if attacked else clean, personal=0.9))
    return found


def test_a_drop_is_the_share_that_is_lost_paired_by_seed() -> None:
    groups = grouped(attacked_halves(*SWEEP))
    for group in groups:
        found = drops_of(group, groups)
        if group.choices["fleet.attack.kind"] == "none":
            assert found == {}
            continue
        assert list(found) == ["mean", "worst", "full model", "personal"]
        assert found["full model"].by_seed == pytest.approx({"0": 0.5, "1": 0.5})
        assert found["mean"].by_seed == pytest.approx({"0": 0.2 / 0.65, "1": 0.15 / 0.55})
        assert found["personal"].by_seed == {"0": 0.0, "1": 0.0}


def test_only_seeds_that_both_have_are_paired() -> None:
    results = attacked_halves(*SWEEP)
    left = [each for each in results if each.trial.seed == "0"
            or each.trial.choices["fleet.attack.kind"] != "none"]  # fmt: skip
    groups = grouped(left)
    attacked = next(g for g in groups if g.choices["fleet.attack.kind"] != "none")
    assert list(drops_of(attacked, groups)["mean"].by_seed) == ["0"]


def test_a_share_of_0_is_no_attack_and_any_clean_run_will_do() -> None:
    results = attacked_halves("fleet.attack.share=0,0.2", "fleet.attack.strength=1,20")
    groups = grouped(results)
    dropped = [group.choices for group in groups if drops_of(group, groups)]
    assert [(each["fleet.attack.share"], each["fleet.attack.strength"]) for each in dropped] == [
        ("0.2", "1"),
        ("0.2", "20"),
    ]


def test_the_table_has_accuracies_and_the_drop() -> None:
    table = drop_table(grouped(attacked_halves(*SWEEP)))
    assert table is not None
    assert table.rows[2] == [
        "heterofl fleet.attack.kind=shuffled-labels: full model",
        "70.0 ± 14.1", "35.0 ± 7.1", "50.0 ± 0.0", "2",
    ]  # fmt: skip
    assert len(table.rows) == 8
    assert drop_table(grouped(attacked_halves("strategy=heterofl,fedavg", "seed=0,1"))) is None


def test_the_files_of_a_comparison_have_the_drops() -> None:
    outcome = Outcome.of_results(attacked_halves(*SWEEP), {"strategy": "heterofl"}, Target())
    texts = outcome.texts()
    assert "### Accuracy drop under attack, in percent" in texts["table.md"]
    groups = json.loads(texts["table.json"])["groups"]
    for group in groups:
        assert ("drops" in group) == (group["choices"]["fleet.attack.kind"] != "none")
    rows = list(csv.DictReader(texts["table.csv"].splitlines()))
    dropped = [row for row in rows if row["score"] == "drop of full model"]
    assert [float(row["mean"]) for row in dropped] == pytest.approx([0.5, 0.5])


def test_rivals_are_under_the_same_attack() -> None:
    for group in rivals(expand(SWEEP)):
        assert len({trial.choices["fleet.attack.kind"] for trial in group}) == 1
        assert len(group) == 2


def test_a_comparison_can_list_attacks() -> None:
    kinds = [compose(trial.overrides).fleet.attack.kind for trial in expand(SWEEP)]
    assert set(kinds) == {"none", "shuffled-labels"}
