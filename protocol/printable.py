"""Makes foreign text safe to show: it may hold anything, including terminal commands."""

from __future__ import annotations

import re

LONGEST = 500
"""Characters of a text that are shown."""

# ECMA-48: a command with its parameters (CSI), a text that is meant for the terminal until its end
# (OSC, DCS, SOS, PM, APC), any other escape; each also in its form of one C1 character.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)


def printable(text: str, longest: int = LONGEST) -> str:
    """Return the text in one line, without characters that change what a terminal shows.

    Escape sequences are removed, white space becomes spaces, and of the rest only printable
    characters stay: no control characters, no marks of direction. A text that is too long ends in
    an ellipsis.
    """
    plain = _ESCAPES.sub("", text[: 8 * longest])  # enough for the part that is shown
    spaced = "".join(" " if letter.isspace() else letter for letter in plain)
    shown = "".join(filter(str.isprintable, spaced))
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"
