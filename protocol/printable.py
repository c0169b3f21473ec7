"""Text of the other side, made fit to be shown: it may hold anything, and a terminal obeys much."""

from __future__ import annotations

import re

LONGEST = 500
"""Characters that are shown of a text."""

# ECMA-48: a command with its parameters (CSI), a text that is meant for the terminal until its end
# (OSC, DCS, SOS, PM, APC), any other escape; each also in its form of one C1 character.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)


def printable(text: str, longest: int = LONGEST) -> str:
    """Return the text in one line, without what moves the cursor, colours, hides or turns letters.

    Escape sequences go, white space becomes spaces, and of what is left only printable characters
    stay: no control characters, no marks of direction. A text that is too long ends in an ellipsis.
    """
    plain = _ESCAPES.sub("", text[: 8 * longest])  # enough for whatever is shown of it
    spaced = "".join(" " if letter.isspace() else letter for letter in plain)
    shown = "".join(filter(str.isprintable, spaced))
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"
