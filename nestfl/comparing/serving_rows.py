"""Compares collaborative inference systems under serving settings, as in CIS's Table 1.

A row has the groups that differ only in the setting that they were trained for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nestfl.comparing.result_tables import ResultTable
from nestfl.comparing.results import ALL_RUNS, Group
from nestfl.comparing.trials import short_name
from server_app.record.serving_settings import SERVING, Cell, best_of, cells_of
from server_app.report.serving_section import Variant, settings_of, settings_table


@dataclass(frozen=True)
class Row:
    """The common choices of a row's groups, and their accuracy under each setting."""

    choices: Mapping[str, str]
    cells: Mapping[str, Cell]

    @property
    def variant(self) -> Variant:
        """The row in the form that is shown."""
        return Variant(short_name(self.choices) or ALL_RUNS, self.cells)


def rows_of(groups: Sequence[Group]) -> list[Row]:
    """Return the rows with at least one value, in the order of their first group."""
    members: dict[tuple[tuple[str, str], ...], list[Group]] = {}
    for group in groups:
        shared = tuple(item for item in group.choices.items() if item[0] != SERVING)
        members.setdefault(shared, []).append(group)
    rows = []
    for choices, each in members.items():
        tested = [result.under_settings for group in each for result in group.results]
        if cells := cells_of(tested):
            rows.append(Row(dict(choices), cells))
    return rows


def serving_table(groups: Sequence[Group]) -> ResultTable | None:
    """Return the accuracy of the system under each setting; None without systems."""
    table = settings_table([row.variant for row in rows_of(groups)])
    if table is None:
        return None
    return ResultTable(table.heading, table.columns, table.rows, table.notes)


def settings_json(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return the table's rows with its numbers; empty without systems."""
    rows = rows_of(groups)
    columns = {setting: [row.cells.get(setting) for row in rows]
               for setting in settings_of([row.variant for row in rows])}  # fmt: skip
    best = {setting: best_of(cells) for setting, cells in columns.items()}
    return [
        {
            "choices": dict(row.choices),
            "settings": {
                setting: {
                    "mean": cell.mean,
                    "deviation": cell.deviation,
                    **asdict(cell),
                    "best": cell in best[setting],
                }
                for setting, cell in row.cells.items()
            },
        }
        for row in rows
    ]
