"""A clock that the tests of this folder move themselves."""

from __future__ import annotations

import pytest

from strategies.nodes import enrolment
from strategies.nodes import exchange as streaming
from tests.support.scripted import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Take the place of time where messages are sent and nodes are waited for."""
    clock = Clock()
    monkeypatch.setattr(streaming, "time", clock)
    monkeypatch.setattr(enrolment, "time", clock)
    return clock
