"""Faults that change nothing which a caller can see, or nothing that is promised: no test fails.

Each is named by its file, the line of the source it is in, and the change; a changed line has to
be thought over again.
"""

from __future__ import annotations

EQUAL: dict[tuple[str, str, str], str] = {}
"""The reason for each."""
