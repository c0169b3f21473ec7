"""`fleet.spread`: each round draws a client's level near its tier's."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from protocol.reports import Profile
from protocol.work import Work
from server_app.building import strategy_of
from server_app.config.composing import ConfigError, compose
from strategies.nodes.enrolment import Client
from strategies.round import NestedStrategy
from tests.support.federations import federate_in
from tests.support.grids import InProcessGrid

WIDTHS = "strategy.widths=[0.2,0.4,0.6,0.8,1.0]"
CHOSEN = {
    "heterofl": f"strategy=heterofl {WIDTHS}",
    "fjord": f"strategy=fjord {WIDTHS}",
    "nefl": f"strategy=nefl strategy.ratios=null {WIDTHS}",
}
NEAR = {1: {1, 2, 3}, 2: {1, 2, 3, 4}, 3: {1, 2, 3, 4, 5}, 4: {2, 3, 4, 5}, 5: {3, 4, 5}}
"""NeFL, B.5: the tiers up to two off a client's own."""


@cache
def method(name: str, more: str = "") -> NestedStrategy:
    """Return a method with five levels for a hundred clients, twenty in each of five tiers."""
    return strategy_of(compose(f"{CHOSEN[name]} model=resnet20 fleet=five {more}"))


def client(tier: int, place: int = 0, budget: float | None = None) -> Client:
    number = 20 * (tier - 1) + place
    return Client(number, number, Profile(number, 100, 10, budget, "cpu"))


def drawn(strategy: NestedStrategy, who: Client, rounds: int) -> list[int]:
    return [strategy.drawn_cut(who, number).level.number for number in range(1, rounds + 1)]


@pytest.mark.parametrize("name", CHOSEN)
def test_levels_up_to_two_tiers_off_are_drawn_equally_often(name: str) -> None:
    for tier, near in NEAR.items():
        counts = Counter(drawn(method(name), client(tier), 300))
        assert counts.keys() == near
        assert [counts[n] / 300 for n in near] == pytest.approx(
            [1 / len(near)] * len(near), abs=0.08
        )
        assert {level.number for level in method(name).levels_of(client(tier))} == near


def test_a_draw_is_of_the_seed_the_round_and_the_client_alone() -> None:
    strategy, other = method("fjord"), method("fjord", "seed=1")
    again = strategy_of(compose(f"{CHOSEN['fjord']} model=resnet20 fleet=five"))
    one, neighbour = client(3), client(3, 1)
    assert drawn(strategy, one, 30) == drawn(again, one, 30) == drawn(method("heterofl"), one, 30)
    assert drawn(strategy, one, 30) != drawn(strategy, neighbour, 30)
    assert drawn(strategy, one, 30) != drawn(other, one, 30)


def test_without_spread_a_client_trains_its_tier_s_level() -> None:
    strategy = method("heterofl", "fleet.spread=0")
    for tier in NEAR:
        assert set(drawn(strategy, client(tier), 20)) == {tier}
        assert list(strategy.levels_of(client(tier))) == [strategy.level_of(client(tier))]


@pytest.mark.parametrize("name", CHOSEN)
def test_a_device_that_says_what_it_affords_trains_nothing_larger(name: str) -> None:
    strategy = method(name)
    for budget in (0.01, 0.4, 0.7, 1.0):
        who = client(3, budget=budget)
        own = strategy.level_of(who).number
        assert set(drawn(strategy, who, 100)) == set(range(max(1, own - 2), own + 1))


@pytest.mark.parametrize("name", CHOSEN)
def test_the_slices_of_a_round_are_those_of_the_levels_drawn(name: str) -> None:
    strategy, clients = method(name), [client(tier, place) for tier in NEAR for place in (0, 7)]
    levels = set()
    for number in (1, 2, 3):
        for assigned in strategy.assign(number, clients):
            level = strategy.drawn_cut(assigned.client, number).level
            levels.add(level.number)
            assert assigned.level == level.number
            assert assigned.cut.level.slice.width == level.slice.width == level.number / 5
            narrower = tuple(n / 5 for n in range(1, level.number)) if name == "fjord" else ()
            assert assigned.cut.level.slice.nested == narrower
    assert levels == {1, 2, 3, 4, 5}


def test_a_run_sends_the_levels_drawn(tmp_path: Path) -> None:
    grid = InProcessGrid(4)
    strategy, lines = federate_in(tmp_path)("fleet.spread=3 rounds=3", grid)
    works = [Work.read(m.content) for m in grid.sent if m.metadata.message_type == "train"]
    slices = {level.slice: level.number for level in strategy.levels}
    for line in lines:
        number = line["round"]
        expected = {
            str(n): strategy.drawn_cut(who, number).level.number
            for n, who in strategy.clients.items()
        }
        assert {n: own["level"] for n, own in line["trained"].items()} == expected
        sent = sorted(slices[work.slice] for work in works if work.round == number)
        assert sent == sorted(expected.values())
    assert len({tuple(own["level"] for own in line["trained"].values()) for line in lines}) > 1


def test_a_spread_below_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="fleet: spread is -1: expected 0 or more"):
        compose("strategy=heterofl fleet.spread=-1")
