"""Turns the comment behind a field into its docstring in the reference."""

from __future__ import annotations

import re
from typing import Any

import griffe

BEHIND = re.compile(r"\s#\s(?!noqa|type:)(.+)$")


class Comments(griffe.Extension):
    """Gives fields without a docstring the comment at the end of their line."""

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Read the comment of a field that griffe has found."""
        comment = BEHIND.search(attr.source.split("\n")[0])
        if attr.docstring is None and attr.lineno == attr.endlineno and comment is not None:
            attr.docstring = griffe.Docstring(comment[1], lineno=attr.lineno, parent=attr)
