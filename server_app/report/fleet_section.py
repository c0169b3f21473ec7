"""Who holds which slice: levels and their costs, clients, and who trained which part how often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from server_app.record.fleet_record import PartFacts, measured_budgets
from server_app.report.amounts import amount, counted, duration, listed, percent
from server_app.report.grouping import ABSENT, Group
from server_app.report.run_data import RunData
from server_app.report.tables import Table

MOST_TILES = 400
"""Clients that are drawn one by one."""
MOST_PARTS = 300
"""Parts that are shown, over all groups."""


@dataclass(frozen=True)
class Tile:
    """A client in the drawing of the fleet: its level's colour, stronger if it trained more."""

    number: str
    colour: int
    strength: float
    text: str
    attacks: bool = False


@dataclass(frozen=True)
class PartRow:
    """A part of the network: what share of it each level holds, and how often it was trained."""

    name: str
    parameters: str
    shares: Sequence[float]
    trained: str
    often: float
    """Client-rounds that a parameter of it was in, on average."""
    bar: float
    """The same as a share of the most trained part's."""


@dataclass(frozen=True)
class Fleet:
    """The fleet of a group, as far as it was recorded."""

    group: str
    tiles: Sequence[Tile]
    tile_note: str
    levels: Sequence[str]
    parts: Sequence[PartRow]
    part_note: str


def fleets(groups: Sequence[Group]) -> list[Fleet]:
    """Return the fleets of groups whose runs recorded them."""
    found, room = [], MOST_PARTS
    for group in groups:
        run = next((run for run in group.runs if run.fleet is not None), None)
        if run is None or run.fleet is None:
            continue
        parts = _parts(run, run.fleet["parts"]) if len(run.fleet["parts"]) <= room else []
        room -= len(parts)
        own = any(part["own"] for part in run.fleet["parts"])
        found.append(
            Fleet(
                group.name,
                _tiles(run),
                _tile_note(run),
                list(run.level_facts),
                parts,
                "Levels train copies of their own of some parts, which they do not share."
                if own
                else "",
            )
        )
    return found


def levels_costs(groups: Sequence[Group]) -> Table | None:
    """Return what the levels are and took, one group's after the other's; None if not recorded."""
    rows, changing = [], False
    for group in groups:
        run = next((run for run in group.runs if run.fleet is not None), None)
        if run is None or run.fleet is None:
            continue
        prefix = [group.name] if len(groups) > 1 else []
        rows += [[*prefix, *cells] for cells in _level_rows(group, run)]
        changing |= any("levels" in client for client in run.fleet["clients"].values())
    if not rows:
        return None
    columns = [*(["settings"] if len(groups) > 1 else []), "level", "units", "width", "parameters",
               "share", "MACs", "memory", "bytes", "clients", "examples", "client-rounds",
               "device time", "MACs spent"]  # fmt: skip
    notes = [
        "MACs: multiply-accumulates of one answer. Memory: to train a batch. Bytes: of the level's "
        "tensors, one way. Client-rounds: replies that were taken; device time and MACs spent are "
        "their sums."
    ]
    if changing:
        notes.append("Clients may be assigned other levels in other rounds.")
    return Table("Levels", columns, rows, notes)


def _level_rows(group: Group, run: RunData) -> list[list[str]]:
    assert run.fleet is not None
    clients = list(run.fleet["clients"].values())
    rows = []
    for name, level in run.level_facts.items():
        own = [client for client in clients if client["level"] == level["number"]]
        width = level["width"]
        widths = width if isinstance(width, list) else [width]
        replied, seconds, macs = (
            fmean([each.level_sums(what).get(name, 0.0) for each in group.runs])
            for what in ("replied", "device_seconds", "macs")
        )
        rows.append(
            [
                name,
                f"{level['depth']} of {level['units']}",
                ", ".join(f"{share:.3g}" for share in widths),
                amount(level["parameters"]),
                percent(level["share"]),
                amount(level["macs"]),
                amount(level["memory"], "B"),
                amount(level["bytes"], "B"),
                str(len(own)),
                str(sum(client["examples"] for client in own)),
                f"{replied:g}",
                duration(seconds),
                amount(macs),
            ]
        )
    return rows


def _tiles(run: RunData) -> list[Tile]:
    assert run.fleet is not None
    clients, names = run.fleet["clients"], list(run.level_facts)
    if len(clients) > MOST_TILES:
        return []
    most = max(run.trained_rounds.values(), default=0)
    scores = {kind: run.scores(kind)[1] for kind in run.kinds}
    tiles = []
    for number, client in clients.items():
        trained = run.trained_rounds.get(number, 0)
        measured = " (measured)" if client.get("measured") else ""
        told = [f"client {number}: level {client['level']}, {client['examples']} examples",
                f"budget {client['budget']:.3g}{measured}, {client['device']}",
                f"trained in {counted(trained, 'round')}"]  # fmt: skip
        told += [f"{kind} {percent(found[number])}" for kind, found in scores.items()
                 if number in found]  # fmt: skip
        attacks = client.get("attacks", False)
        told += ["attacks"] * attacks
        colour = names.index(str(client["level"])) if str(client["level"]) in names else 0
        strength = trained / most if most else 0.0
        tiles.append(Tile(number, colour, strength, ", ".join(told), attacks))
    return tiles


def _tile_note(run: RunData) -> str:
    assert run.fleet is not None
    count, trained = len(run.fleet["clients"]), len(run.trained_rounds)
    never = count - trained
    idle = f"; {never} of them never trained" if never > 0 else ""
    drawn = (
        "The stronger the colour, the more rounds a client has trained in."
        if count <= MOST_TILES
        else f"More than {MOST_TILES} are not drawn one by one."
    )
    attackers = [number for number, client in run.fleet["clients"].items() if "attacks" in client]
    attack = f" Attackers: {listed(attackers)}." if attackers else ""
    budgets = measured_budgets(run.fleet)
    named = listed([f"client {number} {budget:.3g}" for number, budget in budgets.items()])
    measured = f" Budgets that devices have measured: {named}." if budgets else ""
    return f"{counted(count, 'client')}{idle}. {drawn}{attack}{measured}"


def _parts(run: RunData, parts: Sequence[PartFacts]) -> list[PartRow]:
    replied = run.level_sums("replied")
    often = [
        sum(replied.get(level, 0) * share for level, share in part["held"].items())
        for part in parts
    ]
    most = max(often, default=0) or 1
    return [
        PartRow(
            part["name"],
            amount(part["parameters"]),
            list(part["held"].values()),
            _trained(part, replied),
            each,
            each / most,
        )
        for part, each in zip(parts, often, strict=True)
    ]


def _trained(part: PartFacts, replied: dict[str, float]) -> str:
    """Say in how many client-rounds a part, or some of it, was trained."""
    counts = [int(replied.get(level, 0)) for level, share in part["held"].items() if share]
    if not counts:
        return ABSENT
    if part["own"]:
        return " / ".join(map(str, counts))
    return str(sum(counts))
