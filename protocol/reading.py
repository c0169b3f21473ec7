"""Reads foreign bytes: each read ends in a valid value or in a ProtocolError.

This is the one place where foreign bytes meet our code. Replies are read inside `reading`, and each
value is checked with the functions below, so that nothing but ProtocolError is raised.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from protocol.printable import printable

MOST = 2**53
"""Largest whole number in a record: up to it, floats are exact."""
LONGEST_SHOWN = 80
"""Characters of a foreign value or an error that a message repeats."""


class ProtocolError(ValueError):
    """A record that is invalid; its text is quoted only as far as is safe.

    `reason` is the word under which it is counted.
    """

    def __init__(self, text: str, reason: str = "report") -> None:
        super().__init__(printable(text))
        self.reason = reason


@contextmanager
def reading(what: str, reason: str = "report") -> Iterator[None]:
    """Turn any error while foreign bytes are read into a ProtocolError.

    Everything is caught, because no list of exceptions is complete: nested brackets end in a
    RecursionError, long numbers in a ValueError or an OverflowError, sizes in a MemoryError.
    """
    try:
        yield
    except ProtocolError:
        raise
    except Exception as error:
        detail = f"{type(error).__name__}: {str(error)[:LONGEST_SHOWN]}"
        raise ProtocolError(f"{what} that cannot be read: {detail}", reason) from None


def check_names(
    found: Collection[str], expected: Collection[str], where: str, reason: str = "report"
) -> None:
    """Raise unless the found names are exactly the expected ones."""
    if set(found) != set(expected):
        names = ", ".join(sorted(expected))
        others = [shown(name) for name in found if name not in expected][:3]
        more = f", and not {' or '.join(others)}" if others else ""
        raise ProtocolError(f"{where} has {len(found)} parts: expected {names}{more}", reason)


def whole(value: object, name: str, least: int = 0, most: int = MOST) -> int:
    """Return the value if it is a whole number in the range."""
    if type(value) is int and least <= value <= most:
        return value
    raise ProtocolError(f"{name} is {shown(value)}: expected a whole number, {least} to {most}")


def number(value: object, name: str) -> float:
    """Return the value if it is a number; the caller checks for infinity and NaN."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise ProtocolError(f"{name} is {shown(value)}: expected a number")


def within(value: object, name: str, least: float, most: float) -> float:
    """Return the value if it is a number in the range."""
    if least <= number(value, name) <= most:
        return number(value, name)
    raise ProtocolError(f"{name} is {shown(value)}: expected a number, {least:g} to {most:g}")


def text(value: object, name: str, longest: int) -> str:
    """Return the value if it is a text of at most `longest` characters."""
    if isinstance(value, str) and len(value) <= longest:
        return value
    raise ProtocolError(f"{name} is {shown(value)}: expected a text of at most {longest} letters")


def shown(value: object) -> str:
    """Format a foreign value, shortened to fit a message."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, list | tuple | dict):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, str | bytes) and len(value) > LONGEST_SHOWN:
        return f"{value[:LONGEST_SHOWN]!r} and {len(value) - LONGEST_SHOWN} more"
    return repr(value)[: 2 * LONGEST_SHOWN]
