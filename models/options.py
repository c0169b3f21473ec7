"""Reads values of options, which may come as text from a command line."""

from __future__ import annotations


def whole_number(option: str, value: int | str) -> int:
    """Return an option's number, or raise `ValueError` if it is not 1, 2, 3..."""
    if not str(value).isdecimal() or int(value) < 1:
        raise ValueError(f"{option} is {value!r}: expected a whole number, at least 1")
    return int(value)


def share_left_out(option: str, value: float | str) -> float:
    """Return dropout's share of values to leave out, below 1."""
    try:
        share = float(value)
    except ValueError:
        share = 1.0
    if not 0 <= share < 1:
        raise ValueError(f"{option} is {value}: expected a share, less than 1")
    return share
