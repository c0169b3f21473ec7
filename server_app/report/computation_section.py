"""What clients computed in training: a local epoch of each architecture, of a round, and all."""

from __future__ import annotations

from collections.abc import Sequence

from server_app.record.computation import epoch_macs
from server_app.report.amounts import amount
from server_app.report.grouping import Group
from server_app.report.run_data import RunData, by_number
from server_app.report.tables import Table

ALL = "all"
"""The row of all levels."""


def computation_table(groups: Sequence[Group]) -> Table | None:
    """Return what the levels' clients computed, of several groups all levels together.

    Of a group's runs it is the first that recorded it; None where none did.
    """
    rows = []
    for group in groups:
        found = next((each for each in map(_rows, group.runs) if each), [])
        rows += found if len(groups) == 1 else [[group.name, *row[1:]] for row in found[-1:]]
    if not rows:
        return None
    first = "level" if len(groups) == 1 else "settings"
    return Table(
        "Computation",
        [first, "clients", "MACs of a client's epoch", "MACs of a round's epoch", "MACs in all"],
        rows,
        ["Of forward passes; training takes three times as many. A client's epoch: one local epoch "
         "of one client, the mean over client-rounds. A round's epoch: of all its clients, the "
         "mean over rounds; of all levels that is MACE (FedFA). In all: x rounds x local epochs."],
    )  # fmt: skip


def _rows(run: RunData) -> list[list[str]]:
    """Return a row for each level that was trained, and one for all; none if not recorded."""
    epochs = run.config.get("train", {}).get("epochs")
    if not epochs or run.fleet is None:
        return []
    rounds = [found for line in run.lines if (found := epoch_macs(line, epochs))]
    replied = run.level_sums("replied")
    held = [str(client["level"]) for client in run.fleet["clients"].values()]
    macs: dict[str, float] = {}
    for level in sorted({level for each in rounds for level in each}, key=by_number):
        macs[level] = sum(each.get(level, 0) for each in rounds)

    def row(name: str, clients: int, taken: float, total: float) -> list[str]:
        a_client = total / taken if taken else None
        sums = (a_client, total / len(rounds), total * epochs)
        return [name, str(clients), *map(amount, sums)]

    rows = [row(name, held.count(name), replied.get(name, 0), macs[name]) for name in macs]
    taken = sum(replied.get(name, 0) for name in macs)
    return [*rows, row(ALL, len(held), taken, sum(macs.values()))] if rows else []
