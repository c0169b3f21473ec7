"""The fleet of a run: its levels and their costs, clients, parts, and the clients' accuracy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean, median

from server_app.record.fleet_record import PartFacts, measured_budgets
from server_app.record.summary import epoch_macs
from server_app.report.amounts import amount, counted, duration, listed, percent
from server_app.report.blocks import (
    Block,
    Cell,
    Figures,
    Fold,
    Table,
    Text,
    Tile,
    Tiles,
)
from server_app.report.charts import Figure, Lane, lanes_chart
from server_app.report.grouping import ABSENT, Group, accuracies, all_of
from server_app.report.run_data import RunData, by_number
from server_app.report.scores import NO_FLEET
from strategies.evaluation import worst_tenth

MOST_TILES = 400  # clients that are drawn one by one
MOST_PARTS = 300  # parts that are shown, over all groups
NAMED = 5  # clients with the least accuracy that are named
MOST_LISTED = 100  # clients of the table; of more it has those with the least accuracy
FEW, BARS, BARS_OF_MANY = 8, 50, 25  # lanes that are few; bars of one of few lanes, and of many
COST_NOTE = (
    "MACs: multiply-accumulates of one answer. Memory: to train a batch. Bytes: of the level's "
    "tensors, one way. Client-rounds: replies that were taken; device time and MACs spent are "
    "their sums."
)
COMPUTATION_NOTE = (
    "Of forward passes; training takes three times as many. A client's epoch: one local epoch of "
    "one client, the mean over client-rounds. A round's epoch: of all its clients, the mean over "
    "rounds; of all levels that is MACE (FedFA). In all: x rounds x local epochs."
)
PARTS_NOTE = (
    "What share of a part's parameters each level holds, in how many client-rounds some of it was "
    "trained, and in how many a parameter of it was, on average."
)
OWN_NOTE = " Levels train copies of their own of some parts, which they do not share."


def fleet_blocks(groups: Sequence[Group]) -> list[Block]:
    """Return the levels' costs and computation, the clients, and the parts that levels hold."""
    known = [(group.name, run) for group in groups if (run := group.recorded)]
    if not known:
        return [Text(NO_FLEET)]
    blocks: list[Block] = [*levels_costs(groups), *computation_table(groups)]
    alone, room, heading = len(known) == 1, MOST_PARTS, "Parts of the network"
    if alone:
        blocks += tile_blocks(known[0][1])
    for name, run in known:
        for table in parts_table(run):
            if len(table.rows) <= room:
                room -= len(table.rows)
                parts: list[Block] = [Text(heading, tag="h3"), table]
                blocks += parts if alone else [Fold(f"{heading}: {name}", [table])]
    return blocks


def levels_costs(groups: Sequence[Group]) -> list[Table]:
    """Return the size and the costs of the levels, one group's after the other's."""
    rows, changing = [], False
    for group in groups:
        run = group.recorded
        clients = list(run.clients.values()) if run else []
        changing |= any("levels" in client for client in clients)
        for name, level in run.level_facts.items() if run else ():
            own = [client for client in clients if client["level"] == level["number"]]
            widths = level["width"] if isinstance(level["width"], list) else [level["width"]]
            replied, seconds, macs = (
                fmean(each.level_sums(what).get(name, 0.0) for each in group.runs)
                for what in ("replied", "device_seconds", "macs")
            )
            rows.append(_named(group, groups) | {
                "level": name,
                "units": f"{level['depth']} of {level['units']}",
                "width": ", ".join(f"{share:.3g}" for share in widths),
                "parameters": amount(level["parameters"]),
                "share": percent(level["share"]),
                "MACs": amount(level["macs"]),
                "memory": amount(level["memory"], "B"),
                "bytes": amount(level["bytes"], "B"),
                "clients": str(len(own)),
                "examples": str(sum(client["examples"] for client in own)),
                "client-rounds": f"{replied:g}",
                "device time": duration(seconds),
                "MACs spent": amount(macs),
            })  # fmt: skip
    notes = [COST_NOTE, *["Clients may be assigned other levels in other rounds."] * changing]
    return Table.of(rows, notes=notes)


def _named(group: Group, groups: Sequence[Group]) -> dict[str, str]:
    """Return the first cell of a group's row; no cell where there is one group alone."""
    return {"settings": group.name} if len(groups) > 1 else {}


def computation_table(groups: Sequence[Group]) -> list[Table]:
    """Return the computation of the levels' clients, of several groups all levels together.

    Of a group's runs it is the first that recorded it.
    """
    rows = []
    for group in groups:
        found = next((each for each in map(_computed, group.runs) if each), [])
        rows += (
            [{"level": name, **cells} for name, cells in found]
            if len(groups) == 1
            else [{"settings": group.name, **cells} for _, cells in found[-1:]]
        )
    return Table.of(rows, "Computation", [COMPUTATION_NOTE])


def _computed(run: RunData) -> list[tuple[str, dict[str, str]]]:
    """Return the cells of each level that was trained, and of all; none if not recorded."""
    epochs = run.config.get("train", {}).get("epochs")
    if not epochs or run.fleet is None:
        return []
    rounds = [each for line in run.lines if (each := epoch_macs(line, epochs))]
    replied = run.level_sums("replied")
    levels = sorted({level for each in rounds for level in each}, key=by_number)
    found = []
    for name, those in (*((level, [level]) for level in levels), *[("all", levels)] * bool(levels)):
        total = sum(each.get(level, 0) for each in rounds for level in those)
        taken = sum(replied.get(level, 0) for level in those)
        held = sum(name in ("all", run.level_of(client)) for client in run.clients)
        found.append((name, {
            "clients": str(held),
            "MACs of a client's epoch": amount(total / taken if taken else None),
            "MACs of a round's epoch": amount(total / len(rounds)),
            "MACs in all": amount(total * epochs),
        }))  # fmt: skip
    return found


def tile_blocks(run: RunData) -> list[Block]:
    """Return the clients one by one: their levels, and how often they trained."""
    names, few = list(run.level_facts), len(run.clients) <= MOST_TILES
    never = len(run.clients) - len(run.trained_rounds)
    idle = f"; {never} of them never trained" if never > 0 else ""
    drawn = (
        "The stronger the colour, the more rounds a client has trained in."
        if few
        else f"More than {MOST_TILES} are not drawn one by one."
    )
    attackers = [number for number, client in run.clients.items() if "attacks" in client]
    attack = f" Attackers: {listed(attackers)}." if attackers else ""
    budgets = measured_budgets(run.fleet) if run.fleet else {}
    named = listed([f"client {number} {budget:.3g}" for number, budget in budgets.items()])
    measured = f" Budgets that devices have measured: {named}." if budgets else ""
    note = f"{counted(len(run.clients), 'client')}{idle}. {drawn}{attack}{measured}"
    legend = [(number, f"level {level}") for number, level in enumerate(names)]
    tiles = [Tiles([_tile(run, number) for number in run.clients], legend)] if few else []
    return [Text("Clients", tag="h3"), Text(note, "faint"), *tiles]


def _tile(run: RunData, number: str) -> Tile:
    client, names, level = run.clients[number], list(run.level_facts), run.level_of(number)
    trained, most = run.trained_rounds.get(number, 0), max(run.trained_rounds.values(), default=0)
    scores = {kind: run.scores(kind)[1].get(number) for kind in run.kinds}
    attacks = client.get("attacks", False)
    measured = " (measured)" if client.get("measured") else ""
    told = [f"client {number}: level {level}, {client['examples']} examples",
            f"budget {client['budget']:.3g}{measured}, {client['device']}",
            f"trained in {counted(trained, 'round')}",
            *(f"{kind} {percent(score)}" for kind, score in scores.items() if score is not None),
            *["attacks"] * attacks]  # fmt: skip
    colour = names.index(level) if level in names else 0
    return Tile(number, colour, trained / most if most else 0.0, ", ".join(told), attacks)


def parts_table(run: RunData) -> list[Table]:
    """Return the share of each part that the levels hold, and how often it was trained."""
    parts, replied = run.fleet["parts"] if run.fleet else [], run.level_sums("replied")
    often = [sum(replied.get(level, 0) * share for level, share in part["held"].items())
             for part in parts]  # fmt: skip
    most = max(often, default=0) or 1
    rows = [
        {
            "part": part["name"],
            "parameters": amount(part["parameters"]),
            **{f"level {level}": Cell.share(f"{100 * share:.0f} %" if share else ABSENT, share, n)
               for n, (level, share) in enumerate(part["held"].items())},
            "client-rounds": _trained(part, replied),
            Cell("each parameter", "often"): Cell.bar(f"{each:.3g}", each / most),
        }
        for part, each in zip(parts, often, strict=True)
    ]  # fmt: skip
    return Table.of(
        rows, notes=[PARTS_NOTE + OWN_NOTE * any(p["own"] for p in parts)], style="parts"
    )


def _trained(part: PartFacts, replied: dict[str, float]) -> str:
    """Say in how many client-rounds a part, or some of it, was trained."""
    counts = [int(replied.get(level, 0)) for level, share in part["held"].items() if share]
    if part["own"] and counts:
        return " / ".join(map(str, counts))
    return str(sum(counts)) if counts else ABSENT


def client_blocks(groups: Sequence[Group]) -> list[Block]:
    """Return the spread of accuracy over the clients, and the clients with the lowest accuracy."""
    spread = spread_table(groups)
    if not spread:
        return [Text("No test of single clients is recorded.")]
    note = "How many clients have which accuracy in their newest test; the dashed line is the mean."
    table = clients_table(groups)
    listed_ones = [Fold("Each client", table)] if table else []
    return [*spread, Figures(spread_figures(groups), [note]), *listed_ones]


def _kinds(groups: Sequence[Group]) -> list[str]:
    return list(dict.fromkeys(kind for group in groups for run in group.runs for kind in run.kinds))


def spread_figures(groups: Sequence[Group]) -> list[Figure]:
    """Return the number of clients by accuracy, for each kind of test."""
    figures = []
    for kind in _kinds(groups):
        lanes = [lane for lane in _lanes(groups, kind) if lane.scores]
        if lanes:
            chart = lanes_chart(kind, lanes, BARS if len(lanes) <= FEW else BARS_OF_MANY)
            figures.append(Figure(f"Clients' tests: {kind}", [], {kind: chart}))
    return figures


def _lanes(groups: Sequence[Group], kind: str) -> list[Lane]:
    """Return the clients of each level of one group's first run, or of each of several groups."""
    if len(groups) > 1:
        scores = [[each for run in group.runs for each in run.scores(kind)[1].items()]
                  for group in groups]  # fmt: skip
        return [Lane(group.name, n, scores[n], named=False) for n, group in enumerate(groups)]
    run = groups[0].runs[0]
    found = run.scores(kind)[1]
    if run.fleet is None:
        return [Lane("all clients", 0, sorted(found.items()))]
    return [
        Lane(
            f"level {level}", n, [each for each in found.items() if run.level_of(each[0]) == level]
        )
        for n, level in enumerate(run.level_facts)
    ]


def spread_table(groups: Sequence[Group]) -> list[Table]:
    """Return the mean, the worst tenth and the extremes of the clients' newest tests."""
    measures: dict[str, Callable[[Sequence[float]], float | None]] = {
        "mean": fmean, "worst tenth": worst_tenth, "median": median, "lowest": min, "highest": max,
    }  # fmt: skip
    rows = []
    for group in groups:
        for kind in _kinds([group]):
            found = [list(scores.values()) for run in group.runs if (scores := run.scores(kind)[1])]
            if not found:
                continue
            row = _named(group, groups) | {"test": kind, "clients": _tested(group, kind)}
            row |= {name: accuracies([measure(each) for each in found])
                    for name, measure in measures.items()}  # fmt: skip
            if len(groups) == 1:
                row["who has least"] = _worst_clients(group.runs[0], kind)
            rows.append(row)
    note = "Worst tenth: the mean of the tenth of the clients whose accuracy is lowest."
    return Table.of(rows, notes=[note])


def _tested(group: Group, kind: str) -> str:
    """Return the number of tested clients, and of all clients where some were not tested."""
    run = next(run for run in group.runs if run.scores(kind)[1])
    tested, fleet = len(run.scores(kind)[1]), len(run.fleet["clients"]) if run.fleet else 0
    return f"{tested} of {fleet}" if tested < fleet else str(tested)


def _worst_clients(run: RunData, kind: str) -> str:
    scores, named = run.scores(kind)[1], []
    for client in sorted(scores, key=lambda client: (scores[client], int(client)))[:NAMED]:
        level = f" (level {level})" if (level := run.level_of(client)) else ""
        named.append(f"{client}{level} {percent(scores[client])}")
    return listed(named)


def clients_table(groups: Sequence[Group]) -> list[Table]:
    """Return each client's accuracy in its newest tests, of a single run; the lowest come first.

    They are sorted by the first kind of test.
    """
    run, *others = [run for group in groups for run in group.runs]
    by_kind = {kind: scores for kind in run.kinds if (scores := run.scores(kind)[1])}
    if others or not by_kind:
        return []
    first = next(iter(by_kind.values()))
    tested = all_of([list(scores) for scores in by_kind.values()])
    tested.sort(key=lambda client: first.get(client, math.inf))
    rows = [
        {
            "client": client,
            "level": run.level_of(client) or ABSENT,
            "examples": str(run.clients[client]["examples"]) if client in run.clients else ABSENT,
            "rounds trained": str(run.trained_rounds.get(client, 0)),
            **{kind: percent(scores.get(client)) for kind, scores in by_kind.items()},
        }
        for client in tested[:MOST_LISTED]
    ]
    cut = [f"The {MOST_LISTED} of {len(tested)} clients whose accuracy is lowest."]
    return Table.of(rows, notes=cut if len(tested) > MOST_LISTED else [])
