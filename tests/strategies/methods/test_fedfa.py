"""FedFA as a whole: clients' choices, grafting, averaging, and the slices sent back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from torch import Tensor

from models import Slice, extract
from protocol.reports import Choice, Profile
from protocol.work import Work
from server_app.building import strategy_of
from server_app.config.composing import ConfigError, compose
from strategies.aggregation.update import RefusedUpdateError, Update
from strategies.methods.choosing.choosing import union
from strategies.methods.fedfa.fedfa import FedFA
from strategies.methods.fedfa.grafting import grafted
from strategies.nodes.enrolment import Client
from tests.support.federations import Federate, federate_in
from tests.support.grids import InProcessGrid

SMALL = (
    "strategy=fedfa model=preresnet-micro fleet.clients=4 fleet.budgets=[1.0] fleet.shares=[1] "
    "clients_per_round=4 rounds=2 strategy.trials=3 strategy.batch_size=8 train.epochs=1 "
    "train.batch_size=32 train.schedule=constant dataset.max_train=160 dataset.max_test=40 "
    "evaluate.every=0"
)
TWO, THREE = (0, 1), (0, 1, 2)
NARROW, WIDE = 2 / 3, 1.0


@pytest.fixture
def federate(tmp_path: Path) -> Federate:
    found = federate_in(tmp_path)
    return lambda overrides="", grid=None: found(
        overrides if overrides.startswith("resume") else f"{SMALL} {overrides}", grid
    )


def architecture(blocks: tuple[tuple[int, ...], ...], width: float) -> Slice:
    return Slice((width,) * 3, blocks)


def client(number: int, budget: float | None = None) -> Client:
    return Client(number, 100 + number, Profile(number, 4, 40, budget, "cpu"))


def fedfa(overrides: str = "", *choices: Slice) -> FedFA:
    """Return the strategy after clients have chosen."""
    strategy = strategy_of(compose(f"{SMALL} {overrides}"))
    assert isinstance(strategy, FedFA)
    for number, choice in enumerate(choices):
        strategy.roster.clients[number] = client(number)
        strategy.choices[number] = choice
    if choices:
        strategy.prepare()
    return strategy


def reply(strategy: FedFA, number: int, value: float, **values: float) -> Update:
    """Return a client's update of one value, but where blocks are named."""
    level = strategy.level_of(strategy.clients[number])
    submodel = strategy.submodels.at(level)
    state: dict[str, Tensor] = {}
    for name, like in submodel.form.items():
        block = next((v for b, v in values.items() if name.startswith(b.replace("_", "."))), value)
        state[name] = torch.full(like.shape, block, dtype=like.dtype)
    return Update(state, submodel.map, 1.0, number, level.slice, level.number, strategy.state)


def averaged(strategy: FedFA, *updates: Update) -> dict[str, Tensor]:
    aggregator = strategy.aggregator()
    for update in updates:
        aggregator.add(update)
    return aggregator.result(strategy.state)


# --- grafting ------------------------------------------------------------------------------------


def test_copies_of_a_stages_last_block_stand_in_for_those_it_lacks() -> None:
    names = ["stem", "layer1.0.conv", "layer1.1.conv", "layer1.1.bias", "layer2.0.conv", "fc"]
    own, wanted = ((0, 1), (0,)), ((0, 1, 2, 3), (0,))
    assert grafted(names, own, wanted, "layer{stage}.{block}.") == {
        **{name: name for name in names},
        "layer1.2.conv": "layer1.1.conv",
        "layer1.2.bias": "layer1.1.bias",
        "layer1.3.conv": "layer1.1.conv",
        "layer1.3.bias": "layer1.1.bias",
    }


def test_block_11_is_not_taken_for_block_1() -> None:
    names = [f"layer1.{block}.conv" for block in range(12)]
    every = tuple(range(13))
    found = grafted(names, (every[:12],), (every,), "layer{stage}.{block}.")
    assert found["layer1.12.conv"] == "layer1.11.conv"
    assert len(found) == 13


def test_depth_only_a_shallow_client_trains_every_block() -> None:
    shallow, deep = (architecture((blocks,) * 3, NARROW) for blocks in (TWO, THREE))
    strategy = fedfa("strategy.flexible=depth strategy.scale=none", shallow, deep)
    found = averaged(
        strategy,
        reply(strategy, 0, 1, layer1_1=2),
        reply(strategy, 1, 5, layer1_1=6, layer1_2=8),
    )
    assert found["layer1.0.conv1.weight"].unique().tolist() == [3]  # (1 + 5) / 2
    assert found["layer1.1.conv1.weight"].unique().tolist() == [4]  # (2 + 6) / 2
    assert found["layer1.2.conv1.weight"].unique().tolist() == [5]  # (2 + 8) / 2: grafted
    assert found["layer1.2.act1.norm.bias"].unique().tolist() == [5]
    assert found["layer2.2.conv2.weight"].unique().tolist() == [3]
    assert found["fc.weight"].unique().tolist() == [3]


def test_without_grafting_few_train_the_last_blocks() -> None:
    shallow, deep = (architecture((blocks,) * 3, NARROW) for blocks in (TWO, THREE))
    strategy = fedfa(
        "strategy.flexible=depth strategy.scale=none strategy.graft=false", shallow, deep
    )
    found = averaged(strategy, reply(strategy, 0, 1), reply(strategy, 1, 5))
    assert found["layer1.1.conv1.weight"].unique().tolist() == [3]
    assert found["layer1.2.conv1.weight"].unique().tolist() == [5]


def test_depth_and_width_together() -> None:
    """A narrow shallow client and a wide deep one: grafted blocks are narrow, scales are equal."""
    small, large = architecture((TWO,) * 3, NARROW), architecture((THREE,) * 3, WIDE)
    strategy = fedfa("", small, large)
    found = averaged(strategy, reply(strategy, 0, 1, layer1_1=2), reply(strategy, 1, 4))
    weight = found["layer1.2.conv2.weight"]  # 12 x 12, of which the narrow one grafts 8 x 8
    # All entries are alike, so a norm is the value times the root of the number of entries.
    norms = 2 * (8 * 8 * 9) ** 0.5, 4 * (12 * 12 * 9) ** 0.5
    mean = sum(norms) / 2
    inner = (2 * mean / norms[0] + 4 * mean / norms[1]) / 2
    assert weight[:8, :8].flatten().tolist() == pytest.approx([inner] * 8 * 8 * 9, rel=1e-5)
    assert weight[8:].flatten().tolist() == pytest.approx(
        [4 * mean / norms[1]] * 4 * 12 * 9, rel=1e-5
    )


def test_equal_clients_make_fedavg() -> None:
    large = architecture((THREE,) * 3, WIDE)
    strategy = fedfa("", large, large)
    chance = torch.Generator().manual_seed(1)
    values = {k: torch.randn(t.shape, generator=chance) for k, t in strategy.state.items()}
    first = reply(strategy, 0, 1)
    state = {k: values[k] if t.is_floating_point() and k in values else t
             for k, t in first.state.items()}  # fmt: skip
    same = Update(state, first.map, 1.0, 0, first.slice, first.level, strategy.state)
    found = averaged(strategy, same, same)
    for name, tensor in state.items():
        if not first.map.regions[name].banked:
            torch.testing.assert_close(found[name], tensor, rtol=2e-7, atol=1e-11)


def test_what_nobody_held_stays() -> None:
    small, large = architecture((TWO,) * 3, NARROW), architecture((THREE,) * 3, WIDE)
    strategy = fedfa("", small, large)
    found = averaged(strategy, reply(strategy, 0, 1))
    before = strategy.state["layer3.2.conv1.weight"]
    assert torch.equal(found["layer3.2.conv1.weight"][32:], before[32:])
    assert torch.equal(found["layer3.2.conv1.weight"][:, 32:], before[:, 32:])
    assert torch.allclose(found["layer3.2.conv1.weight"][:32, :32], torch.ones(()))  # grafted


def test_statistics_of_grafted_blocks_are_nobodys() -> None:
    shallow, deep = (architecture((blocks,) * 3, NARROW) for blocks in (TWO, THREE))
    strategy = fedfa("strategy.flexible=depth", shallow, deep)
    update = strategy.grafted(reply(strategy, 0, 1))
    assert "layer1.1.act1.norm.running_mean" in update.state
    assert "layer1.2.act1.norm.running_mean" not in update.state
    assert "layer1.2.act1.norm.weight" in update.state


# --- the global model, and what clients get of it ------------------------------------------------


def test_the_global_model_has_the_most_of_each_stage() -> None:
    one = Slice((WIDE, NARROW, NARROW), (TWO, THREE, TWO))
    other = Slice((NARROW, NARROW, WIDE), (TWO, TWO, THREE))
    strategy = fedfa("", one, other)
    assert union([one, other]) == Slice((WIDE, NARROW, WIDE), (TWO, THREE, THREE))
    assert len(strategy.levels) == 3  # that nobody has chosen is the last
    assert strategy.levels[-1].slice.width == (WIDE, NARROW, WIDE)
    assert strategy.state["layer2.0.conv1.weight"].shape == (16, 12, 3, 3)
    assert "layer1.2.conv1.weight" not in strategy.state
    assert not strategy.coverage.lacks  # grafting trains it


def test_a_client_gets_the_first_blocks_and_channels() -> None:
    small, large = architecture((TWO,) * 3, NARROW), architecture((THREE,) * 3, WIDE)
    strategy = fedfa("", small, large)
    state = strategy.state
    net = strategy.network(1).state_dict()
    assert torch.equal(net["layer2.1.conv1.weight"], state["layer2.1.conv1.weight"][:16, :16])
    assert not any(name.startswith("layer2.2") for name in net)


def test_a_global_model_that_nobody_chose_gets_statistics_from_all_who_may_afford_it() -> None:
    one = Slice((WIDE, NARROW, NARROW), (TWO, THREE, TWO))
    other = Slice((NARROW, NARROW, WIDE), (TWO, TWO, THREE))
    strategy = fedfa("", one, other)
    gathered = [[c.level.number for c in strategy.gathered_by(client(n))] for n in (0, 1)]
    assert sorted(gathered) == [[1, 3], [2, 3]]
    small = next(n for n in (0, 1) if strategy.level_of(client(n)).number == 1)
    assert len(strategy.gathered_by(client(small, budget=0.3))) == 1  # no more than it affords
    chosen = fedfa("", one, union([one, other]))
    gathered = [[c.level.number for c in chosen.gathered_by(client(n))] for n in (0, 1)]
    assert sorted(gathered) == [[1], [2]]


# --- choices -------------------------------------------------------------------------------------


def test_the_first_half_holds_the_smallest_and_attackers_the_largest() -> None:
    strategy = fedfa()
    held = [strategy.fixed(client(number)) for number in range(4)]
    assert held == [strategy.candidates.smallest] * 2 + [None] * 2
    assert strategy.fixed(client(0, budget=0.5)) is None  # a device that says what it affords
    attacked = fedfa("fleet.attack.kind=shuffled-labels fleet.attack.share=0.25")
    (attacker,) = attacked.federation.attackers
    assert attacked.fixed(client(attacker)) == attacked.candidates.largest


def test_variants_offer_depth_or_width() -> None:
    assert fedfa("strategy.flexible=depth").candidates.widths == ((NARROW,),) * 3
    assert fedfa("strategy.flexible=width").candidates.blocks == ((2,),) * 3
    assert len(fedfa("strategy.flexible=both").candidates) == 2**6


def test_a_federation_of_clients_that_choose(federate: Federate) -> None:
    grid = InProcessGrid(4)
    strategy, lines = federate("name=chosen", grid)
    assert isinstance(strategy, FedFA)
    offers = [m for m in grid.sent if m.metadata.message_type == "query.method"]
    assert len(offers) == 2  # of those who are not held to the smallest
    told = Work.read(offers[0].content).told
    assert told["blocks"] == ((2, 3),) * 3
    assert strategy.choices[0] == strategy.choices[1] == strategy.candidates.smallest
    assert lines[-1]["clients"]["replied"] == 4
    assert set(lines[-1]["levels"]) == {str(level.number) for level in strategy.levels}


def test_a_budget_bounds_the_choice(federate: Federate) -> None:
    whole = fedfa()
    least, most = (
        sum(p.numel() for p in whole.federation.task.build(each).parameters())
        for each in (whole.candidates.smallest, whole.candidates.largest)
    )
    share = 1.5 * least / most
    strategy, _ = federate(
        f"strategy.smallest=0 strategy.choose=largest strategy.trials=64 strategy.tolerance=0 "
        f"fleet.budgets=[{share},1.0] fleet.shares=[1,1] rounds=1"
    )
    assert isinstance(strategy, FedFA)
    sizes = [strategy.level_of(each).cost.parameters for each in strategy.clients.values()]
    assert sizes[2:] == [most, most]
    assert all(1.3 * least < size <= 1.5 * least for size in sizes[:2])


def answering(blocks: list[int], width: list[float]):  # type: ignore[no-untyped-def]
    """Return a fault: client 3 says that it has chosen this."""

    def fault(number: int, message: Message, reply: Message) -> Message:
        if number == 3 and message.metadata.message_type == "query.method":
            choice = ConfigRecord({"blocks": blocks, "width": width})
            return Message(RecordDict({"choice": choice}), reply_to=message)
        return reply

    return fault


@pytest.mark.parametrize(
    ("blocks", "width", "why"),
    [
        ([2, 2, 9], [1.0, 1.0, 1.0], r"chose blocks \[2, 2, 9\]"),
        ([2, 2, 2], [1.0, 1.0, 0.7], "expected blocks of"),
        ([2, 2], [1.0, 1.0], r"chose blocks \[2, 2\]"),
        ([2**50, 2, 2], [1.0, 1.0, 1.0], "chose blocks"),
        ([0, 2, 2], [1.0, 1.0, 1.0], "blocks is 0: expected a whole number"),
        ([2] * 500, [1.0] * 500, "expected a short list"),
    ],
)
def test_who_chooses_what_was_not_offered_is_left_out_with_the_reason(
    federate: Federate, blocks: list[int], width: list[float], why: str
) -> None:
    strategy, lines = federate("rounds=1", InProcessGrid(4, answering(blocks, width)))
    assert sorted(strategy.clients) == [0, 1, 2]
    (told,) = lines[-1]["left_out"].values()
    assert re.search(why, told)
    assert lines[-1]["clients"]["replied"] == 3


def test_who_chooses_more_than_it_affords_is_left_out(federate: Federate) -> None:
    grid = InProcessGrid(4, answering([3, 3, 3], [1.0, 1.0, 1.0]))
    _, lines = federate("rounds=1 fleet.budgets=[0.5] fleet.shares=[1]", grid)
    (told,) = lines[-1]["left_out"].values()
    assert "parameters: expected" in told


def test_a_run_resumed_goes_on_with_the_same_architectures_bit_for_bit(
    federate: Federate, tmp_path: Path
) -> None:
    whole, _ = federate("name=whole rounds=3")
    federate("name=part rounds=2")
    grid = InProcessGrid(4)
    again, _ = federate(f"resume={tmp_path / 'part'} rounds=3", grid)
    assert not [m for m in grid.sent if m.metadata.message_type == "query.method"]
    assert [level.slice for level in again.levels] == [level.slice for level in whole.levels]
    assert all(torch.equal(whole.state[name], t) for name, t in again.state.items())


def test_bounds_see_what_a_client_has_changed_not_what_was_grafted() -> None:
    """A shallow client that sends back what it got has changed nothing, whatever is grafted."""
    small, large = architecture((TWO,) * 3, NARROW), architecture((THREE,) * 3, WIDE)
    for bound in ("aggregation=norm_bound", "aggregation=clipped"):
        strategy = fedfa(f"{bound} aggregation.times=1e-6", small, large)
        submodel = strategy.submodels.at(strategy.levels[0])
        sent = extract(strategy.state, submodel.map)
        held = submodel.level.slice
        found = averaged(strategy, Update(sent, submodel.map, 1.0, 0, held, 1, strategy.state))
        last, before = "layer1.2.conv1.weight", strategy.state["layer1.1.conv1.weight"]
        torch.testing.assert_close(found[last][:8, :8], before[:8, :8])  # grafted, not drawn back


def test_a_layer_that_is_nearly_nothing_is_refused() -> None:
    """Its scale factor would have no limit: one client could blow up a layer of all."""
    large = architecture((THREE,) * 3, WIDE)
    strategy = fedfa("", large, large)
    honest, hostile = reply(strategy, 0, 0.1), reply(strategy, 1, 0.1)
    weight = hostile.state["layer1.0.conv2.weight"]
    weight.fill_(1e-12)
    weight.view(-1)[:9] = 0.1
    aggregator = strategy.aggregator()
    aggregator.add(honest)
    with pytest.raises(RefusedUpdateError, match=r"scale: layer1.0.conv2.weight has a norm of"):
        aggregator.add(hostile)
    assert aggregator.result(strategy.state)["layer1.0.conv2.weight"].max() < 0.2


def test_who_does_not_choose_in_time_is_left_out(federate: Federate) -> None:
    def silent(number: int, message: Message, reply: Message) -> Message | None:
        silences = number == 2 and message.metadata.message_type == "query.method"
        return None if silences else reply

    strategy, lines = federate("rounds=1 deadline=4 in_flight=1", InProcessGrid(4, silent))
    assert sorted(strategy.clients) == [0, 1]  # nor was there time to ask client 3
    assert len(lines[-1]["left_out"]) == 2
    assert any("no time left to ask" in why for why in lines[-1]["left_out"].values())


def test_a_choice_that_costs_too_much_by_now_is_asked_anew() -> None:
    small, large = architecture((TWO,) * 3, NARROW), architecture((THREE,) * 3, WIDE)
    strategy = fedfa("strategy.smallest=0", small, large)
    assert strategy._still_fits(client(1))
    assert not strategy._still_fits(client(1, budget=0.4))  # another device under its number
    assert strategy._still_fits(client(0, budget=0.01))  # the smallest is anyone's


def test_one_that_joins_later_holds_the_largest_level_in_its_choice() -> None:
    small, large = architecture((TWO,) * 3, NARROW), architecture((THREE,) * 3, WIDE)
    strategy = fedfa("", small, large)
    strategy.choices[2] = Slice((NARROW, WIDE, WIDE), (TWO, TWO, THREE))
    assert strategy.level_of(client(2)) == strategy.levels[0]
    strategy.choices[2] = large
    assert strategy.level_of(client(2)) == strategy.levels[1]


def test_a_choice_is_sent_and_read_back() -> None:
    choice = Choice((2, 3), (0.5, 1.0))
    assert Choice.read(RecordDict({"choice": choice.record()})) == choice


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ("model=msdnet24", "msdnet24 has no stages of blocks"),
        ("strategy.blocks=[[1,2,3]]", r"blocks of stage 1 are \[1, 2, 3\]: expected 2 or more"),
        ("strategy.blocks=[[2,4]]", r"blocks of stage 1 are \[2, 4\], but preresnet-micro has 3"),
        ("strategy.widths=[[0.5],[1.0]]", "widths are given for 2 stages: expected one list, or 3"),
        ("strategy.smallest=1.5", "smallest is 1.5: expected a share"),
        ("strategy.batches=1", "batches is 1: expected at least 2"),
        ("strategy.percentile=0", "percentile is 0.0: expected above 0, to 100"),
        ("fleet.spread=1", "fleet.spread is 1, but clients hold what they have chosen"),
        ("strategy.least_norm=1", "least_norm is 1.0: expected a share, less than 1"),
        ("strategy.reading=outer", "unknown strategy.reading 'outer'"),
    ],
)
def test_wrong_settings_say_what_is_wrong(overrides: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        compose(f"{SMALL} {overrides}")
