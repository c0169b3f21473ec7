"""Clients' text is made harmless before terminals and logs show it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.printable import LONGEST, printable

COMMANDS = st.sampled_from(
    ["\x1b[31m", "\x1b[2J", "\x9b1A", "\x1b]0;", "\x07", "\x1b\\", "\x9d52;c;", "\x9c", "\x1bP",
     "\x1b", "\r", "\b", "\n", "\u202e", "\u2066", "\u200f", "\u2028", "\x7f", "\x85", "\ud800"]
)  # fmt: skip


@given(st.lists(st.one_of(COMMANDS, st.text(max_size=5))).map("".join))
def test_whatever_is_sent_is_one_printable_line_of_bounded_length(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert len(shown) <= LONGEST


@given(st.text(st.characters(exclude_categories=("C", "Z")), max_size=LONGEST))
def test_what_is_printable_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;a new title\x07text", "text"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9d52;c;Y2xpcA==\x9ccopied", "copied"),
        ("\x1bPdevice control\x1b\\text", "text"),
        ("\x1b(0graphics\x1bc", "graphics"),
        ("50 %\r100 %", "50 % 100 %"),
        ("a\tb\nc\u2028d", "a b c d"),
        ("abc\u202etxt.exe", "abctxt.exe"),
        ("  indented", "  indented"),
        ("x" * LONGEST, "x" * LONGEST),
        ("x" * 10**6, "x" * (LONGEST - 1) + "…"),
    ],
)
def test_a_terminal_is_told_nothing(sent: str, shown: str) -> None:
    assert printable(sent) == shown
