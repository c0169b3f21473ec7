"""Results of finished runs: scores, the last rise, a target's cost, unequal conditions."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nestfl.commands.compare import TARGET_SCORES
from nestfl.comparing.differences import baseline_of
from nestfl.comparing.fairness import (
    Costs,
    LevelCost,
    costs_of,
    costs_of_rivals,
    other_settings,
    other_steps,
    rivals,
    unequal_levels,
)
from nestfl.comparing.outcome import Known, Outcome
from nestfl.comparing.result_tables import (
    accuracy_table,
    computation_table,
    default_target,
    difference_of,
    exit_tables,
    perplexity_tables,
    target_table,
)
from nestfl.comparing.results import (
    TARGETS,
    Computation,
    Result,
    Spent,
    Target,
    grouped,
    score_names,
)
from nestfl.comparing.trials import Trial, expand
from server_app.config.composing import compose


def line(round: int, mean: float | None = None, **more: Any) -> dict[str, Any]:
    scores = {} if mean is None else {"mean": mean}
    return {
        "round": round,
        "bytes": {"down": 100, "up": 10},
        "slices": {"1": {"macs": 5}, "2": {"macs": 7}},
        "trained": {"0": {"level": 1, "examples": 8}, "3": {"level": 2, "examples": 9}},
        **scores,
        **more,
    }


def result(
    trial: Trial, curve: Sequence[float | None], levels: dict[str, Any] | None = None, **more: Any
) -> Result:
    """Return a run whose mean accuracy after each round is given; None was no test."""
    lines = [line(number, mean) for number, mean in enumerate(curve, 1)]
    summary = {"rounds": len(curve), "levels": levels or {}, "mean": curve[-1], **more}
    return Result(trial, Path(trial.name), summary, lines)  # type: ignore[arg-type]


def trials(*overrides: str) -> list[Trial]:
    return expand(overrides)


ONE = Trial({"strategy": "scalefl", "seed": "0"})


def test_scores_are_of_all_levels_and_of_exits_where_there_are_several() -> None:
    levels = {
        "1": {"accuracy": 0.4, "exits": {"6": {"accuracy": 0.4}}},
        "2": {"accuracy": 0.6, "exits": {"6": {"accuracy": 0.5}, "9": {"accuracy": 0.6}}},
    }
    found = result(ONE, [0.5], levels, worst=0.4, local=0.45).scores
    assert found == {
        "worst": 0.4,
        "mean": 0.5,
        "local": 0.45,
        "level 1": 0.4,
        "level 2": 0.6,
        "level 2, exit 6": 0.5,
        "level 2, exit 9": 0.6,
    }


def test_best_is_the_mean_after_the_best_round_where_one_is_known() -> None:
    best = {"round": 2, "validation": 0.7, "mean": 0.65}
    found = result(ONE, [0.5, 0.65, 0.6], best=best)
    assert found.scores == {"mean": 0.6, "best": 0.65}
    assert "best" not in result(ONE, [0.5, 0.6]).scores
    (note, _) = accuracy_table(grouped([found])).notes
    assert note == "Best: the mean after the best round by validation data."


def worded(strategy: str, seed: int, perplexity: float) -> Result:
    """Return a run of a language model."""
    levels = {"1": {"accuracy": 0.2, "perplexity": perplexity, "exits": {}}}
    best = {"round": 1, "mean": 0.2, "mean_perplexity": perplexity - 1}
    more = {"mean_perplexity": perplexity, "local_perplexity": perplexity + 5}
    trial = Trial({"strategy": strategy, "seed": str(seed)})
    return result(trial, [0.2], levels, best=best, **more)


def test_perplexities_stand_beside_accuracies_and_are_better_where_they_are_lower() -> None:
    ours = [worded("nefl", seed, 90 + seed) for seed in range(3)]
    theirs = [worded("heterofl", seed, 100.5 + seed) for seed in range(3)]
    outcome = Outcome.of_results([*ours, *theirs], {"strategy": "heterofl"}, Target())
    assert score_names(outcome.groups) == [
        *("mean", "best", "level 1"),
        *("mean perplexity", "local perplexity", "best perplexity", "level 1 perplexity"),
    ]
    accuracy, perplexity, _, _, differences = outcome.tables()
    assert accuracy.columns == ["", "seeds", "mean", "best", "level 1", "rise"]
    assert perplexity.columns == ["", "mean", "local", "best", "level 1"]
    assert perplexity.rows[0] == ["nefl", *("91.0 ± 1.0", "96.0 ± 1.0"), "90.0 ± 1.0", "91.0 ± 1.0"]
    mean = next(row for row in differences.rows if row[0] == "nefl: mean perplexity")
    assert mean[1:] == ["-10.5", "-10.5 to -10.5", "3", "better"]
    assert differences.notes[-1] == "Perplexities are no percents, and better where they are lower."
    assert perplexity_tables(grouped([result(ONE, [0.5])])) == []


def test_the_names_of_scores_are_sorted_by_number() -> None:
    levels = {str(n): {"accuracy": 0.5, "exits": {}} for n in (10, 2, 1)}
    levels["2"]["exits"] = {"9": {"accuracy": 0.5}, "11": {"accuracy": 0.5}}
    assert score_names(grouped([result(ONE, [0.5], levels, worst=0.1)])) == [
        *("worst", "mean", "level 1", "level 2", "level 10"),
        *("level 2, exit 9", "level 2, exit 11"),
    ]


def test_the_rise_is_that_of_a_line_through_the_last_fifth() -> None:
    # Rounds 13 to 15: 0.50, 0.53, 0.52. The slope is (0.52 - 0.50) / 2, over three rounds.
    curve = [0.1] * 12 + [0.50, 0.53, 0.52]
    assert result(ONE, curve).rise == pytest.approx(0.03)


def test_the_rise_goes_by_the_last_three_tests_where_fewer_are_in_that_fifth() -> None:
    # 30 rounds, tested every 5: 0.40, 0.45 and 0.50 after rounds 20, 25 and 30. 0.01 a round.
    curve = [mean for end in (0.1, 0.2, 0.3, 0.40, 0.45, 0.50) for mean in [None] * 4 + [end]]
    assert result(ONE, curve).rise == pytest.approx(0.06)  # a fifth are six rounds


def test_the_rise_of_untested_rounds_is_not_known() -> None:
    assert result(ONE, [None] * 8 + [0.5, 0.6]).rise is None


def test_rounds_that_were_not_tested_do_not_change_the_rise() -> None:
    curve = [None] * 16 + [None, 0.5, None, 0.51, None, 0.52, None, 0.53]  # 24 rounds: 21 to 24
    assert result(ONE, [None] * 4 + curve + [0.54]).rise is not None
    straight: list[float | None] = [0.01 * n for n in range(30)]
    assert result(ONE, straight).rise == pytest.approx(0.06)


def test_what_a_target_took_is_summed_up_to_the_first_test_that_reached_it() -> None:
    run = result(ONE, [0.2, None, 0.6, 0.5, 0.7])
    assert run.spent_until(Target(0.6)) == Spent(rounds=3, bytes=330, macs=36)
    assert run.spent_until(Target(0.65)) == Spent(rounds=5, bytes=550, macs=60)
    assert run.spent_until(Target(0.71)) is None


def two_seeds() -> list[Result]:
    levels = {"1": {"accuracy": 0.5, "exits": {}}}
    ours, theirs = [0.5, 0.6], [0.4, 0.48]
    found = []
    for trial in trials("strategy=scalefl,fedavg", "seed=0,1"):
        mean = (ours if trial.choices["strategy"] == "scalefl" else theirs)[int(trial.seed or 0)]
        found.append(result(trial, [0.1, mean], levels))
    return found


def test_groups_are_averaged_over_their_seeds() -> None:
    table = accuracy_table(grouped(two_seeds()))
    assert table.heading == "Accuracy in percent, mean ± deviation over 2 seeds"
    assert list(table.columns) == ["", "seeds", "mean", "level 1", "rise"]
    assert [list(row) for row in table.rows] == [
        ["scalefl", "2", "55.0 ± 7.1", "50.0 ± 0.0", "?"],
        ["fedavg", "2", "44.0 ± 5.7", "50.0 ± 0.0", "?"],
    ]


def test_the_target_is_one_that_all_runs_reached() -> None:
    groups = grouped(two_seeds())
    assert default_target(groups) == Target(0.4)
    lone = grouped([result(ONE, [0.29], {"1": {"accuracy": 0.317}}, local=0.5)])
    assert default_target(lone) == Target(0.29)  # 100 * 0.29 is less than 29
    assert default_target(lone, "full model") == Target(0.31, "full model")
    assert default_target(lone, "local") == Target(0.5, "local")
    assert default_target(lone, "personal") == Target(None, "personal")


def test_the_target_is_never_below_chance() -> None:
    poor = grouped([result(ONE, [0.07], {"1": {"accuracy": 0.07}})])
    assert default_target(poor) == Target(0.07)
    assert default_target(poor, chance=1 / 10) == Target(0.1)
    assert default_target(poor, chance=1 / 3) == Target(0.34)
    assert default_target(poor, chance=1 / 100) == Target(0.07)


def test_what_a_target_took_is_of_the_runs_that_reached_it() -> None:
    groups = grouped(two_seeds())
    assert [list(row) for row in target_table(groups, Target(0.44)).rows] == [
        ["scalefl", "2 of 2", "2.0", "220 bytes", "24"],
        ["fedavg", "1 of 2", "2.0", "220 bytes", "24"],
    ]


def test_the_score_that_is_to_reach_a_target_is_chosen() -> None:
    tests: list[dict[str, Any]] = [
        {"worst": 0.1, "levels": {"1": {"accuracy": 0.7}, "2": {"accuracy": 0.2}}, "cis": 0.39},
        {
            "worst": 0.2,
            "levels": {"1": {"accuracy": 0.7}, "2": {"accuracy": 0.5}},
            "local": 0.4,
            "cis": 0.4,
        },
        {"worst": 0.5, "mean": 0.6, "personal": {"accuracy": 0.9}},
    ]
    lines = [line(number, **each) for number, each in enumerate(tests, 1)]
    run = Result(ONE, Path("run"), {"levels": {"1": {}, "2": {}}}, lines)  # type: ignore[arg-type]
    rounds = {"full model": 2, "cis": 2, "local": 2, "worst": 3, "mean": 3, "personal": 3}
    for score, reached in rounds.items():
        assert run.spent_until(Target(0.4, score)) == Spent(reached, 110 * reached, 12 * reached)
    assert rounds.keys() == TARGETS.keys() == set(TARGET_SCORES)
    assert str(Target(0.4, "full model")) == "40.0 % accuracy of the full model"


def computing(strategy: str, seed: int, curve: Sequence[float | None]) -> Result:
    """Return a run of two local epochs, whose last round had more examples."""
    trial = Trial({"strategy": strategy, "seed": str(seed)})
    lines = [line(number, mean) for number, mean in enumerate(curve, 1)]
    lines[-1]["slices"] = {"1": {"macs": 30}, "2": {"macs": 42}}
    summary = {"rounds": len(curve), "levels": {}, "mean": curve[-1]}
    return Result(trial, Path(trial.name), summary, lines, epochs=2)  # type: ignore[arg-type]


def test_computation_is_that_of_local_epochs_in_forward_passes() -> None:
    # Three passes a step, two epochs: of 12 and 72 MACs one epoch's forward passes are 2 and 12.
    runs = [computing("scalefl", 0, [0.2, 0.6]), computing("scalefl", 1, [0.5, None, 0.6])]
    runs += [computing("fedavg", 0, [0.1, 0.2])]
    ours, theirs = grouped(runs)
    assert runs[0].computation(Target(0.5)) == Computation(mace=7, epochs=4, tmac=28)
    assert runs[1].computation(Target(0.5)) == Computation(16 / 3, 2, 32 / 3)
    assert runs[2].computation(Target(0.5)) == Computation(7)
    table = computation_table([ours, theirs], Target(0.5))
    assert table is not None
    assert table.heading == "Computation to 50.0 % mean accuracy of the levels"
    assert table.columns == ["", "MACE", "T·E", "TMAC"]
    assert table.rows == [["scalefl", "6.16667", "3.0", "19.3333"], ["fedavg", "7", "-", "-"]]
    texts = Outcome.of_results(runs, {}, Target(0.5)).texts()
    found = [group["computation"] for group in json.loads(texts["table.json"])["groups"]]
    assert found[0] == pytest.approx({"mace": 37 / 6, "epochs": 3, "tmac": 58 / 3})
    assert found[1] == {"mace": 7, "epochs": None, "tmac": None}
    rows = [row for row in csv.DictReader(texts["table.csv"].splitlines()) if "mac" in row["score"]]
    assert [(row["strategy"], row["score"], row["seeds"]) for row in rows] == [
        *(("scalefl", score, "2") for score in ("mace", "macs to 0.5", "tmac to 0.5")),
        ("fedavg", "mace", "1"),
    ]


def test_of_runs_without_macs_there_is_no_computation() -> None:
    run = result(ONE, [0.5])
    run.lines[0]["slices"] = {"1": {"replied": 3}}
    assert computation_table(grouped([run]), Target(0.5)) is None


def test_exits_have_a_table_where_levels_have_several() -> None:
    assert exit_tables(grouped(two_seeds())) == []
    levels = {"2": {"accuracy": 0.6, "exits": {"6": {"accuracy": 0.5}, "9": {"accuracy": 0.6}}}}
    [table] = exit_tables(grouped([result(ONE, [0.5], levels)]))
    assert list(table.columns) == ["", "exit 6", "exit 9"]
    assert list(table.rows[0]) == ["scalefl: level 2", "50.0", "60.0"]


def test_the_files_of_a_comparison_say_the_same() -> None:
    known = Known(warnings=["a warning"])
    outcome = Outcome.of_results(two_seeds(), {"strategy": "fedavg"}, Target(), known)
    texts = outcome.texts()
    found = json.loads(texts["table.json"])
    scores = found["groups"][0]["scores"]["mean"]
    assert found["groups"][0]["choices"] == {"strategy": "scalefl"}
    assert scores["by_seed"] == {"0": 0.5, "1": 0.6}
    assert scores["difference"]["mean"] == pytest.approx(0.11)
    assert scores["difference"]["verdict"] == "too few seeds"
    assert found["groups"][1]["scores"]["mean"]["difference"] is None  # the baseline itself
    rows = list(csv.DictReader(texts["table.csv"].splitlines()))
    assert rows[0]["strategy"] == "scalefl"
    assert float(rows[0]["difference"]) == pytest.approx(0.11)
    assert rows[-1]["difference"] == ""
    spent = {row["score"]: (row["mean"], row["seeds"]) for row in rows if " to 0.4" in row["score"]}
    names = ("rounds", "bytes", "macs", "epochs", "tmac")
    assert spent.keys() == {f"{what} to {found['target']}" for what in names}
    assert found["groups"][0]["to_target"]["runs"] == 2
    markdown = texts["table.md"]
    assert "| scalefl | 2 | 55.0 ± 7.1 | 50.0 ± 0.0 | ? |" in markdown
    assert "- a warning" in markdown
    assert "Differences to strategy=fedavg" in markdown


def test_options_of_one_strategy_make_groups_that_are_compared_to_the_baseline_of_all() -> None:
    asked = ("strategy=scalefl,heterofl", "scalefl.beta=0,0.1", "heterofl.dynamic=true", "seed=0,1")
    runs = [result(trial, [0.5 + 0.1 * n]) for n, trial in enumerate(trials(*asked))]
    for baseline, differing in (
        ({"strategy": "heterofl"}, {"scalefl beta=0": -0.2, "scalefl beta=0.1": -0.1}),
        (
            {"strategy": "scalefl", "scalefl.beta": "0.1"},
            {"scalefl beta=0": -0.1, "heterofl dynamic=True": 0.1},
        ),
        ({"strategy": "scalefl"}, {"scalefl beta=0.1": 0.1, "heterofl dynamic=True": 0.2}),
    ):
        groups = {each.name: each for each in grouped(runs)}
        scores = {
            name: difference_of(group, base, "mean")
            for name, group in groups.items()
            if (base := baseline_of(group, list(groups.values()), baseline)) is not None
        }
        assert {n: pytest.approx(each.mean) for n, each in scores.items() if each} == differing
    of_seed_0 = [trial for trial in trials(*asked) if trial.seed == "0"]
    assert list(rivals(of_seed_0)) == [of_seed_0]
    rows = csv.DictReader(
        Outcome.of_results(runs, {}, Target(0.5)).texts()["table.csv"].splitlines()
    )
    options = [
        (row["scalefl.beta"], row["heterofl.dynamic"]) for row in rows if row["score"] == "mean"
    ]
    assert options == [("0", ""), ("0.1", ""), ("", "True")]


def test_runs_that_still_improved_are_named() -> None:
    curve = [0.1] * 12 + [0.50, 0.52, 0.54]
    outcome = Outcome.of_results([result(ONE, curve)], {}, Target())
    assert outcome.warnings == [
        "strategy=scalefl seed=0 was still improving when it ended: the mean accuracy rose by 6.0 "
        "points in the last fifth of its rounds"
    ]
    flat = Outcome.of_results([result(ONE, [0.1] * 12 + [0.50, 0.502, 0.504])], {}, Target())
    assert flat.warnings == []


def test_other_clients_or_examples_are_told() -> None:
    ours, theirs = two_seeds()[:2]
    assert other_steps([ours, theirs]) == []
    theirs.lines[1]["trained"]["3"]["examples"] = 10
    [warning] = other_steps([ours, theirs])
    assert "strategy=scalefl seed=0 and strategy=fedavg seed=0 did not train the same" in warning
    assert warning.endswith("in round 2")


def test_settings_that_are_no_methods_own_are_told() -> None:
    given = trials("strategy=scalefl,heterofl", "rounds=3")
    same = [compose(trial.overrides) for trial in given]
    assert other_settings(given, same) == []
    other = [same[0], compose([*given[1].overrides, "train.lr=0.05"])]
    assert other_settings(given, other) == [
        "train.lr is 0.1 with strategy=scalefl, but 0.05 with strategy=heterofl"
    ]


def test_settings_that_are_compared_may_differ() -> None:
    given = trials("train.lr=0.1,0.05", "strategy=scalefl,heterofl")
    assert other_settings(given, [compose(trial.overrides) for trial in given]) == []


def costs(name: str, *parameters: int, macs: int = 10) -> Costs:
    levels = [LevelCost(n, each, macs, 8 * each, 100) for n, each in enumerate(parameters, 1)]
    return Costs(name, tuple(levels), "parameters", 0.1)


def test_levels_that_are_meant_to_be_equal_and_are_not_are_warned_of() -> None:
    warnings, notes = unequal_levels([costs("a", 100, 200), costs("b", 109, 230), costs("c", 95)])
    assert warnings == [
        "level 1 of b has 1.15 times the parameters of c (109 and 95)",
        "level 2 of b has 1.15 times the parameters of a (230 and 200)",
    ]
    assert [note.split(" of ")[0] for note in notes] == ["level 1", "level 2"]  # their bytes


def test_levels_that_are_equal_in_one_cost_may_differ_in_another() -> None:
    warnings, notes = unequal_levels([costs("a", 100, macs=30), costs("b", 105, macs=10)])
    assert warnings == []
    assert notes == ["level 1 of a has 3.00 times the MACs of b (30 and 10)"]


def test_only_rivals_are_meant_to_be_equal() -> None:
    """Levels of two networks differ, without a warning."""
    trials = expand(["model=resnet20,resnet32", "strategy=heterofl,fedavg", "seed=0,1"])
    sets = costs_of_rivals(trials, [compose(trial.overrides) for trial in trials])
    assert [[each.name for each in rivals] for rivals in sets] == [
        ["resnet20: heterofl", "resnet20: fedavg"],
        ["resnet32: heterofl", "resnet32: fedavg"],
    ]
    small, large = (rivals[0].levels[-1].parameters for rivals in sets)
    assert large > 1.5 * small


def test_seeds_and_partitions_change_no_cost() -> None:
    trials = expand(["strategy=heterofl,fedavg", "seed=0,1", "dataset.alpha=100,1", "train.lr=1,2"])
    sets = costs_of_rivals(trials, [compose(trial.overrides) for trial in trials])
    assert [[each.name for each in rivals] for rivals in sets] == [["heterofl", "fedavg"]]


def test_costs_are_those_of_what_clients_hold() -> None:
    found = costs_of("heterofl", compose("strategy=heterofl train.batch_size=4"))
    assert found is not None
    full = found.levels[-1]
    assert full.parameters == 272_186
    assert full.bytes > 2 * 4 * full.parameters  # buffers are sent, too
    assert full.memory > 3 * 4 * full.parameters  # weights, gradients and momentum, activations
    assert [level.number for level in found.levels] == [1, 2, 3, 4]


def test_costs_of_levels_that_devices_decide_are_not_known_before() -> None:
    assert costs_of("scalefl", compose("strategy=scalefl strategy.ratios=null")) is None
