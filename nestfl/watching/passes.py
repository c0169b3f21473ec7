"""Shows how far a pass over many batches is, where someone looks and it takes long."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from server_app.predictor import Batch, Watch, unwatched

PATIENCE = 1.0
"""Seconds that a pass may take without a word."""
PAUSE = 0.2
"""Seconds between two looks at the bar, at least."""


def watched_on(console: Console, patience: float = PATIENCE) -> Watch[Batch]:
    """Show bars on a terminal, each gone when its pass has ended; elsewhere nothing."""
    return Bars(console, patience).watch if console.is_terminal else unwatched


class Bars:
    """A bar for each pass; drawn between batches only, so that what is timed is not disturbed."""

    def __init__(self, console: Console, patience: float) -> None:
        self.console, self.patience = console, patience

    def watch(self, batches: Iterable[Batch], count: int, what: str) -> Iterator[Batch]:
        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        bar = Progress(*columns, console=self.console, transient=True, auto_refresh=False)
        task = bar.add_task(what, total=count)
        drawn = time.monotonic() + self.patience - PAUSE
        try:
            for batch in batches:
                yield batch
                bar.advance(task)
                if time.monotonic() - drawn >= PAUSE:
                    bar.start()
                    bar.refresh()
                    drawn = time.monotonic()
        finally:
            bar.stop()
