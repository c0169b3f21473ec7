"""The fleet in a report: parts and the levels that train them, and the spread over clients."""

from __future__ import annotations

import re
from typing import Any

from server_app.report.blocks import Cell, Table, Text, Tile, Tiles
from server_app.report.charts import Lane
from server_app.report.fleet_section import (
    MOST_TILES,
    clients_table,
    computation_table,
    fleet_blocks,
    levels_costs,
    parts_table,
    spread_figures,
    spread_table,
    tile_blocks,
)
from server_app.report.grouping import Group
from server_app.report.run_data import RunData
from tests.support.recorded_runs import fleet, round_of, run_data


def alone(run: RunData) -> list[Group]:
    return [Group("one", [run])]


def of_rounds(rounds: int, clients: int = 8) -> RunData:
    """Return a run in which two of eight clients hold each of four levels, and all train."""
    record = fleet(clients)
    return run_data([round_of(number, record) for number in range(1, rounds + 1)], record)


def scored(**scores: dict[str, float]) -> RunData:
    means: dict[str, Any] = {kind: sum(own.values()) / len(own) for kind, own in scores.items()}
    return run_data([{"round": 1, "scores": scores, **means}])


def tiles(run: RunData) -> tuple[list[Tile], str]:
    """Return the tiles of a run, and their note."""
    blocks = tile_blocks(run)
    (note,) = (each.text for each in blocks if isinstance(each, Text) and each.style)
    found = [tile for each in blocks if isinstance(each, Tiles) for tile in each.tiles]
    return found, note


def parts(run: RunData) -> Table:
    (table,) = parts_table(run)
    return table


def test_a_part_was_trained_by_the_clients_of_all_levels_that_hold_some_of_it() -> None:
    table = parts(of_rounds(rounds=3))
    assert table.columns[:3] == ["part", "parameters", "level 1"]
    first, second, third, last = table.rows
    assert first[:6] == ["layer1", "1 k", "25 %", "50 %", "75 %", "100 %"]
    assert third[2:6] == ["-", "-", "75 %", "100 %"]
    assert [cell.values for cell in first if isinstance(cell, Cell)][:2] == [
        "--held:0.25;--tint:var(--c0)",
        "--held:0.50;--tint:var(--c1)",
    ]
    # 2 clients a level, 3 rounds: 6 client-rounds a level.
    assert [row[-2] for row in table.rows] == ["24", "18", "12", "6"]
    # Of layer1 a parameter was in 6 x (0.25 + 0.5 + 0.75 + 1) of them, of layer4 in 6 x 1.
    assert [row[-1] for row in table.rows] == ["15", "13.5", "10.5", "6"]
    bars = [cell.values for row in (first, second, last) if isinstance(cell := row[-1], Cell)]
    assert bars == ["--bar:1.000", "--bar:0.900", "--bar:0.400"]


def test_copies_that_levels_do_not_share_are_counted_one_by_one() -> None:
    run = of_rounds(rounds=1)
    assert run.fleet is not None
    run.fleet["parts"][1]["own"] = [2, 3, 4]
    table = parts(run)
    assert table.rows[1][-2] == "2 / 2 / 2"
    assert "copies of their own" in table.notes[0]


def test_a_client_s_tile_is_stronger_the_more_it_trained() -> None:
    record = fleet(4, levels=2)
    lines = [round_of(number, record) for number in (1, 2, 3, 4)]
    for line in lines:
        del line["trained"]["3"]
    del lines[0]["trained"]["0"]
    found, note = tiles(run_data(lines, record))
    assert [tile.strength for tile in found] == [0.75, 1.0, 1.0, 0.0]
    assert [tile.colour for tile in found] == [0, 0, 1, 1]
    assert found[0].text.startswith(
        "client 0: level 1, 40 examples, budget 0.5, cpu, trained in 3 rounds, local 60.0 %"
    )  # 0.9 x 4/6
    assert note.startswith("4 clients; 1 of them never trained. ")


def test_attackers_are_marked() -> None:
    run = of_rounds(rounds=1)
    assert run.fleet is not None
    run.fleet["clients"]["6"]["attacks"] = True
    found, note = tiles(run)
    assert [tile.number for tile in found if tile.attacks] == ["6"]
    assert found[6].text.endswith(", attacks")
    assert note.endswith("trained in. Attackers: 6.")


def test_a_large_fleet_is_not_drawn_client_by_client() -> None:
    assert tiles(of_rounds(rounds=1, clients=MOST_TILES + 1)) == (
        [],
        "401 clients. More than 400 are not drawn one by one.",
    )


def test_levels_have_what_they_cost_and_what_was_spent_on_them() -> None:
    (table,) = levels_costs(alone(of_rounds(rounds=3)))
    assert dict(zip(table.columns, table.rows[1], strict=True)) == {
        "level": "2", "units": "7 of 9", "width": "0.25", "parameters": "50 k", "share": "25.0 %",
        "MACs": "2 M", "memory": "4 MB", "bytes": "200 kB", "clients": "2", "examples": "85",
        "client-rounds": "6", "device time": "6 s", "MACs spent": "1.8 G",
    }  # fmt: skip


def test_computation_is_of_local_epochs_of_levels_rounds_and_all() -> None:
    record = fleet(4, levels=2)
    lines = [round_of(number, record) for number in (1, 2, 3)]
    # Two clients hold level 2, of 2 MMACs an example; in the last round only one of them replied.
    lines[2]["slices"]["2"] |= {"replied": 1, "macs": 300_000_000}
    run = run_data(lines, record, {"train": {"epochs": 5}})
    (table,) = computation_table(alone(run))
    # A round's level 1: 300 M / (3 passes x 5 epochs) = 20 M of two clients; level 2: 40, 40, 20 M.
    assert table.rows == [
        ["1", "2", "10 M", "20 M", "300 M"],
        ["2", "2", "20 M", "33.3 M", "500 M"],
        ["all", "4", "14.5 M", "53.3 M", "800 M"],  # 160 M of 11 client-rounds
    ]
    (several,) = computation_table([Group("a", [run]), Group("b", [run])])
    assert [row[:2] for row in several.rows] == [["a", "4"], ["b", "4"]]


def test_of_an_old_run_no_fleet_is_shown() -> None:
    groups = alone(run_data([round_of(1, fleet())]))
    (told,) = fleet_blocks(groups)
    assert isinstance(told, Text)
    assert "an older version of nestfl made this run" in told.text


def test_the_spread_tells_the_extremes_and_who_has_least() -> None:
    (table,) = spread_table(alone(scored(local={"0": 0.5, "1": 0.2, "2": 0.9, "10": 0.2})))
    assert dict(zip(table.columns, table.rows[0], strict=True)) == {
        "test": "local", "clients": "4", "mean": "45.0 %", "worst tenth": "20.0 %",
        "median": "35.0 %", "lowest": "20.0 %", "highest": "90.0 %",
        "who has least": "1 20.0 %, 10 20.0 %, 0 50.0 %, 2 90.0 %",
    }  # fmt: skip


def test_the_spread_of_several_seeds_is_the_mean_of_each_run_s() -> None:
    runs = [scored(local={"0": 0.2, "1": 0.6}), scored(local={"0": 0.4, "1": 1.0})]
    (table,) = spread_table([Group("both", runs), Group("other", runs[:1])])
    assert table.rows[0] == [
        "both", "local", "2", "55.0 (40.0 to 70.0) %", "30.0 (20.0 to 40.0) %",
        "55.0 (40.0 to 70.0) %", "30.0 (20.0 to 40.0) %", "80.0 (60.0 to 100.0) %",
    ]  # fmt: skip


def test_without_tests_of_clients_there_is_no_spread() -> None:
    assert spread_table(alone(run_data([{"round": 1}]))) == []
    assert spread_figures(alone(run_data([{"round": 1}]))) == []


def test_clients_are_sorted_into_bars_by_their_accuracy() -> None:
    scores = [("0", 0.0), ("1", 0.58), ("2", 0.57), ("3", 1.0)]  # 0.58 x 50 is 28.999... in floats
    assert Lane("all", 0, scores).bars(50) == {0: ["0"], 28: ["2"], 29: ["1"], 49: ["3"]}


def test_the_spread_is_drawn_for_each_level() -> None:
    local, _ = spread_figures(alone(of_rounds(rounds=1)))
    chart = str(local.charts["local"])
    assert re.findall(r'class="label"[^>]*>([^<]*)', chart) == [f"level {n}" for n in (1, 2, 3, 4)]
    # Clients 0 and 1 hold level 1, and reach 0.3 and 0.29; a bar is 2 % wide.
    assert re.findall(r"<title>(\d+ to \d+ %: [^<]*)", chart)[:2] == [
        *("28 to 30 %: client 1", "30 to 32 %: client 0"),
    ]


def test_each_client_is_listed_the_lowest_first() -> None:
    run = of_rounds(rounds=1)  # reaches 0.3, and each client 0.01 less than the one before
    (table,) = clients_table(alone(run))
    assert table.columns == ["client", "level", "examples", "rounds trained", "local", "global"]
    assert table.rows[0] == ["7", "4", "40", "1", "23.0 %", "28.0 %"]
    assert [row[0] for row in table.rows] == list("76543210")
    assert clients_table([Group("two", [run, run])]) == []


def test_a_client_that_lacks_a_test_is_listed_last_and_of_many_the_lowest_are() -> None:
    scores: dict[str, dict[str, float]] = {"local": {"3": 0.5}, "global": {"3": 0.1, "12": 0.2}}
    (table,) = clients_table(alone(scored(**scores)))
    assert [row[0] for row in table.rows] == ["3", "12"]
    assert table.rows[1][-2:] == ["-", "20.0 %"]
    (many,) = clients_table(alone(of_rounds(rounds=1, clients=120)))
    assert len(many.rows) == 100
    assert many.notes == ["The 100 of 120 clients whose accuracy is lowest."]
