"""Shows the progress of long passes over batches on a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from server_app.predictor import Batch, Watch, unwatched

PATIENCE = 1.0
"""Seconds that a pass may take without a bar."""
PAUSE = 0.2
"""Least seconds between two looks at the bar."""


def watched_on(console: Console, patience: float = PATIENCE) -> Watch[Batch]:
    """Return a function that shows a bar on a terminal for each pass, and elsewhere nothing."""
    return Bars(console, patience).watch if console.is_terminal else unwatched


class Bars:
    """Shows a bar for each pass; it is drawn between batches, so that timing is not disturbed."""

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
