"""`fleet.attack`: the attackers, their levels, and honest clients that it leaves unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message, RecordDict

from client_app.app import app
from protocol.attack import Attack
from protocol.reports import Profile
from protocol.work import Work
from server_app.building import strategy_of
from server_app.config.choices import choices
from server_app.config.composing import ConfigError, compose
from strategies.nodes.enrolment import Client
from strategies.registry import METHODS
from strategies.round import NestedStrategy
from tests.support.federations import federate_in
from tests.support.grids import InProcessGrid

SHUFFLED = "fleet.attack.kind=shuffled-labels"


def made(overrides: str) -> NestedStrategy:
    return strategy_of(compose(f"strategy=heterofl model=resnet20 {overrides}"))


def client(number: int, of: int, budget: float | None = None) -> Client:
    return Client(number, number, Profile(number, of, 10, budget, "cpu"))


@pytest.mark.parametrize(("share", "clients", "count"), [
    (0.2, 10, 2), (0.01, 100, 1), (0.29, 100, 29), (0.0, 10, 0), (1.0, 7, 7), (0.2, 4, 1),
])  # fmt: skip
def test_as_many_clients_attack_as_the_share_says(share: float, clients: int, count: int) -> None:
    found = Attack("amplified", share).attackers(clients, seed=3)
    assert len(found) == count
    assert found <= set(range(clients))


def test_who_attacks_is_of_the_seed_alone() -> None:
    by_strategy = {
        compose(f"strategy={name} fleet=three {SHUFFLED} {more}").attackers
        for name in ("scalefl", "heterofl", "fedavg")
        for more in ("", "rounds=3", "fleet.attack.strength=20", "fleet.attack.largest=false")
    }
    assert len(by_strategy) == 1
    seeds = {compose(f"fleet=three {SHUFFLED} seed={seed}").attackers for seed in range(8)}
    assert len(seeds) > 3
    assert compose("fleet=three").attackers == frozenset()


@pytest.mark.parametrize("fleet", choices("fleet"))
def test_every_fleet_can_be_attacked(fleet: str) -> None:
    config = compose(f"fleet={fleet} {SHUFFLED} fleet.attack.strength=20 fleet.attack.share=0.25")
    assert config.fleet.attack == Attack("shuffled-labels", 0.25, 20.0)
    assert len(config.attackers) == round(config.fleet.clients / 4 + 0.1)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("fleet.attack.kind=noise", "unknown fleet.attack.kind 'noise'"),
        ("fleet.attack.share=1.5", "fleet.attack: share is 1.5: expected 0 to 1"),
        (f"fleet.clients=20 {SHUFFLED} fleet.attack.share=0.01", "of 20 clients that is nobody"),
    ],
)
def test_a_wrong_attack_is_told(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose(override)


@pytest.mark.parametrize("more", ["", "fleet.spread=2", "strategy.dynamic=true"])
def test_attackers_hold_the_largest_level_in_every_round(more: str) -> None:
    strategy = made(f"fleet=even {SHUFFLED} {more}")
    plain = made(f"fleet=even {more}")
    attackers = strategy.federation.attackers
    strategy.roster.clients = {number: client(number, 20) for number in range(20)}
    plain.roster.clients = dict(strategy.roster.clients)
    for number, each in strategy.clients.items():
        drawn = {strategy.drawn_cut(each, n).level.number for n in range(1, 30)}
        if number in attackers:
            assert strategy.level_of(each).number == 4
            assert drawn == {4}
        else:
            assert strategy.level_of(each).number == plain.level_of(each).number
            assert strategy.levels_of(each).keys() == plain.levels_of(each).keys()


def test_attackers_keep_their_tiers_where_they_are_to() -> None:
    strategy, plain = made(f"fleet=even {SHUFFLED} fleet.attack.largest=false"), made("fleet=even")
    for number in range(20):
        each = client(number, 20)
        assert strategy.level_of(each).number == plain.level_of(each).number


def test_a_device_that_says_what_it_affords_is_given_nothing_larger_though_it_attacks() -> None:
    strategy = made(f"fleet=even {SHUFFLED}")
    number = min(strategy.federation.attackers)
    assert strategy.level_of(client(number, 20, budget=0.01)).number == 1


def test_only_the_attackers_messages_change(tmp_path: Path) -> None:
    federate = federate_in(tmp_path)
    grids = [InProcessGrid(4), InProcessGrid(4)]
    federate("rounds=1 seed=1", grids[0])
    attack = f"{SHUFFLED} fleet.attack.share=0.25 fleet.attack.largest=false"
    attacked, _ = federate(f"rounds=1 seed=1 {attack}", grids[1])
    (attacker,) = attacked.federation.attackers
    plain, changed = (
        {
            message.metadata.dst_node_id: message.content
            for message in grid.sent
            if message.metadata.message_type == "train"
        }
        for grid in grids
    )
    nodes = list(grids[0].contexts)
    for number, node in enumerate(nodes):
        same = plain[node].config_records["work"] == changed[node].config_records["work"]
        assert same == (number != attacker)
        work = Work.read(changed[node])
        assert (work.sabotage is not None) == (number == attacker)


def test_a_run_without_attackers_is_as_before_bit_for_bit(tmp_path: Path) -> None:
    federate = federate_in(tmp_path)
    plain, _ = federate("")
    nobody, _ = federate(f"{SHUFFLED} fleet.attack.share=0 fleet.attack.strength=20")
    assert all(plain.state[name].equal(nobody.state[name]) for name in plain.state)
    alone = "fleet.attack.kind=amplified fleet.attack.share=0.5 fleet.attack.largest=false"
    by_one, _ = federate(alone)  # of strength 1
    assert all(plain.state[name].equal(by_one.state[name]) for name in plain.state)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_attacked(name: str, tmp_path: Path) -> None:
    attack = f"{SHUFFLED} fleet.attack.share=0.5 fleet.attack.strength=20"
    attack += " fleet=cis_figure2" if name == "serving_rate" else ""  # which has four nodes
    strategy, lines = federate_in(tmp_path)(
        f"strategy={name} rounds=1 model=resnet20 model.norm=bn-running name=attacked {attack}"
    )
    assert lines[-1]["clients"]["replied"] == 4
    assert lines[-1]["clients"]["refused"] == {}
    assert all(torch.isfinite(tensor).all() for tensor in strategy.state.values())
    fleet = json.loads((tmp_path / "attacked" / "fleet.json").read_text())
    attackers = {int(number) for number, each in fleet["clients"].items() if each.get("attacks")}
    assert attackers == strategy.federation.attackers
    top = len(strategy.levels)
    assert all(fleet["clients"][str(number)]["level"] == top for number in attackers)


def test_a_resumed_run_has_the_same_attackers_and_weights(tmp_path: Path) -> None:
    attack = f"{SHUFFLED} fleet.attack.share=0.5 fleet.attack.strength=3"
    whole, _ = federate_in(tmp_path)(f"rounds=2 name=whole {attack}")
    first, _ = federate_in(tmp_path)(f"rounds=1 name=half {attack}")
    again, _ = federate_in(tmp_path)(f"resume={tmp_path / 'half'} rounds=2")
    assert whole.federation.attackers == first.federation.attackers == again.federation.attackers
    assert all(whole.state[name].equal(again.state[name]) for name in whole.state)


def test_a_device_with_data_of_its_own_attacks_nobody() -> None:
    strategy = made(f"fleet=small {SHUFFLED}")
    number = min(strategy.federation.attackers)
    (assigned,) = strategy.assign(1, [client(number, 4)])
    grid = InProcessGrid(4)
    node = list(grid.contexts)[number]
    ((_, message),) = strategy.messages("train", [assigned], 1)
    config: dict[str, Any] = {"data": "/nowhere"}
    context = Context(1, node, config, RecordDict(), {})
    with pytest.raises(ValueError, match="attacks nobody"):
        app(Message(message.content, node, "train"), context)
