"""The report that a run ends with; a run does not fail for want of it."""

from __future__ import annotations

import logging

from server_app.record.run_record import RunRecord

log = logging.getLogger("flwr")  # whose lines `flwr log` shows


def make_report(record: RunRecord) -> None:
    """Write report.html of a run with at least one round; where that cannot be done, say so."""
    try:
        if not record.metrics():
            return
        from server_app.report.page import write_report  # needed at the end alone

        write_report([record.directory], record.report_file)
    except Exception as error:  # whatever it is, the run's results are there
        log.warning("no report was made: %s: %s", type(error).__name__, error)
