"""`nestfl variance`: a line per exit, and the balanced weights that follow."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from nestfl.commands import app

SMALL = ["fleet=cis_7", "dataset.max_train=120", "train.batch_size=16"]


def test_each_exit_s_variance_and_the_balanced_weights_that_follow_from_it() -> None:
    answer = CliRunner().invoke(app, ["variance", "strategy=serving_rate", *SMALL, "--json"])
    assert answer.exit_code == 0, answer.output
    exits = json.loads(answer.stdout)
    assert [each["exit"] for each in exits] == [1, 2, 3]
    assert exits[-1]["unit"] == 9
    inverse = [1 / each["variance"] for each in exits]
    for each, own, serves in zip(exits, inverse, (0.8, 0.15, 0.05), strict=True):
        assert each["steady"] == pytest.approx(own / sum(inverse))
        assert each["balanced"] == pytest.approx((serves + each["steady"]) / 2)


def test_a_table_for_any_method_with_exits() -> None:
    given = ["variance", "strategy=depthfl", "fleet=small", *SMALL[1:], "--batches", "2"]
    answer = CliRunner().invoke(app, given)
    assert answer.exit_code == 0, answer.output
    assert "after unit" in answer.output
    assert "balanced" not in answer.output


def test_too_few_examples_are_said_in_a_sentence() -> None:
    given = ["variance", "strategy=serving_rate", *SMALL[:2], "train.batch_size=100"]
    answer = CliRunner().invoke(app, given)
    assert answer.exit_code == 2
    assert "nestfl variance: 96 examples in batches of 100: expected 2 batches" in answer.output
