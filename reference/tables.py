"""Formats tables and code in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; its cells are Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code(text: str) -> str:
    """Return text as code inside a cell; empty for empty text."""
    return f"`{text}`".replace("|", "\\|") if text else ""


def cell(text: str) -> str:
    """Return plain text for a cell."""
    return text.replace("<", "&lt;").replace("|", "\\|")


def block(text: str, language: str) -> str:
    """Return lines of code."""
    return f"```{language}\n{text.strip(chr(10))}\n```"
