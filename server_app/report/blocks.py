"""Blocks of a report's sections, such as tables, figures and texts.

The template has a macro for each kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from server_app.report.charts import Figure, Legend

LONGEST_NAME = 48  # letters; longer texts are broken into lines


class Cell(str):
    """A text of a table that is drawn, with its class in the style and its style's variables."""

    style: str
    values: str

    def __new__(cls, text: str, style: str, values: str = "") -> Self:
        cell = super().__new__(cls, text)
        cell.style, cell.values = style, values
        return cell

    @classmethod
    def share(cls, text: str, share: float, colour: int) -> Self:
        """Return a text on a ground of a colour, the stronger the larger the share."""
        return cls(text, "share", f"--held:{share:.2f};--tint:var(--c{colour % 8})")

    @classmethod
    def bar(cls, text: str, share: float) -> Self:
        """Return a text beside a bar, the longer the larger the share."""
        return cls(text, "often", f"--bar:{share:.3f}")


@dataclass(frozen=True)
class Table:
    """A table; its heading may be empty."""

    kind: ClassVar = "table"
    heading: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    style: str = ""
    """Class of the page's style."""

    @classmethod
    def of(
        cls,
        rows: Sequence[Mapping[str, str]],
        heading: str = "",
        notes: Sequence[str] = (),
        style: str = "",
    ) -> list[Self]:
        """Return a table of rows by column; no table where there are no rows."""
        if not rows:
            return []
        return [cls(heading, list(rows[0]), [list(row.values()) for row in rows], notes, style)]

    @property
    def prose(self) -> list[bool]:
        """Flags of the columns that hold sentences rather than numbers and names."""
        columns = range(len(self.columns))
        return [any(len(row[place]) > LONGEST_NAME for row in self.rows) for place in columns]


@dataclass(frozen=True)
class Figures:
    """Figures beside each other; with `overs`, buttons choose the axis that all are drawn over."""

    kind: ClassVar = "figures"
    figures: Sequence[Figure]
    notes: Sequence[str] = ()
    overs: Mapping[str, str] | None = None
    """Names of charts, and their buttons' texts."""

    @property
    def shared_legend(self) -> Legend:
        """The legend of all figures, where all have the same."""
        first, *others = [figure.legend for figure in self.figures]
        return first if others and all(legend == first for legend in others) else []


@dataclass(frozen=True)
class Text:
    """A paragraph in a style of the page, or a heading."""

    kind: ClassVar = "text"
    text: str
    style: str = ""
    tag: Literal["p", "h3"] = "p"


@dataclass(frozen=True)
class Cards:
    """Numbers at the top of the page: name, value and note of each."""

    kind: ClassVar = "cards"
    cards: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Tile:
    """A client in the drawing of the fleet: its level's colour, stronger if it trained more."""

    number: str
    colour: int
    strength: float
    text: str
    attacks: bool = False


@dataclass(frozen=True)
class Tiles:
    """All clients of a fleet."""

    kind: ClassVar = "tiles"
    tiles: Sequence[Tile]
    legend: Legend


@dataclass(frozen=True)
class Code:
    """A text in the letters of a program; a command has a button that copies it."""

    kind: ClassVar = "code"
    text: str
    command: bool = False


@dataclass(frozen=True)
class Fold:
    """Blocks that are shown at a click on their summary."""

    kind: ClassVar = "fold"
    summary: str
    blocks: Sequence[Block]


Block = Table | Figures | Text | Cards | Tiles | Code | Fold


@dataclass(frozen=True)
class Section:
    """A section of the page, with its name in the navigation and its heading."""

    name: str
    title: str
    heading: str
    blocks: Sequence[Block]
