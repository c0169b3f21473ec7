"""Texts of numbers: percents, amounts with a unit, durations, counts and lists."""

from __future__ import annotations

UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def percent(share: float | None) -> str:
    """Return an accuracy in percent, or a dash where there is none."""
    return "-" if share is None else f"{100 * share:.1f} %"


def amount(value: float | None, unit: str = "") -> str:
    """Return a number in three figures with a prefix for thousands: 1.23 MB."""
    if value is None:
        return "-"
    size, prefix = next(((size, name) for size, name in UNITS if value >= size), (1.0, ""))
    return f"{value / size:.3g} {prefix}{unit}".strip()


def counted(number: int, thing: str) -> str:
    """Return a number of things: 1 client, 2 clients."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def duration(seconds: float | None) -> str:
    """Return seconds as hours, minutes and seconds, two of them at most."""
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def listed(items: list[str], most: int = 12) -> str:
    """Return items with commas between them; of many the first, and how many more there are."""
    shown = ", ".join(items[:most])
    return f"{shown} and {len(items) - most} more" if len(items) > most else shown
