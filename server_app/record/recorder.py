"""Writes a run's record as it goes: the checkpoints, then the round's line, then progress.

The end of a round is also logged, because a deployed run shows only its log.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Mapping
from typing import Any

from server_app.config.composing import Config
from server_app.record import checkpoint
from server_app.record.checkpoint import BestCheckpoint
from server_app.record.files import PROGRESS_FILE
from server_app.record.fleet_record import (
    FleetRecord,
    clients_of,
    fleet_record,
    read_fleet,
    resumed,
    write_fleet,
)
from server_app.record.metrics import answers_line, round_line, work_line
from server_app.record.run_record import RunRecord
from strategies.coverage import Coverage, without_parts
from strategies.nodes.enrolment import Client
from strategies.observer import Observer
from strategies.round import NestedStrategy

TOLD_EVERY, LOGGED_EVERY = 0.5, 15.0
"""Least seconds between two reports of the same work, to the display and to the log."""

log = logging.getLogger("flwr")  # the logger that `flwr log` shows


class Recorder(Observer):
    """Writes the record of each round; a resumed run continues after its `start`."""

    def __init__(
        self,
        record: RunRecord,
        config: Config,
        start: checkpoint.Checkpoint | None = None,
        command: str = "",
    ) -> None:
        """Prepare to write a run's record; `command` repeats the run."""
        self.record, self.config, self.command = record, config, command
        self.best = BestCheckpoint(record.checkpoints)
        if start is not None:
            self.best.go_on(start)
        self.strategy: NestedStrategy | None = None
        self.fleet: FleetRecord | None = None
        self.progress = record.directory / PROGRESS_FILE
        self._work: tuple[int, str] | None = None
        self._answered = self._told = self._logged = -math.inf
        """Times of the last reply, the last report to the display, and the last line in the log."""

    def started(self, coverage: Coverage, clients: Mapping[int, Client]) -> None:
        partitions = [client.profile.partitions or 0 for client in clients.values()]
        lacking, attackers = coverage.lacks, self.config.attackers & clients.keys()
        without = without_parts(self.config, clients.values())
        if self.config.checkpoint.best and not self.config.validates:
            log.info("dataset.validation is 0: no best checkpoint is kept, only the newest")
        self._tell(
            event="start",
            rounds=self.config.rounds,
            levels=len(coverage.levels),
            nodes=len(clients),
            partitions=max(partitions) or None,
            **({"lacks": lacking} if lacking else {}),
            **({"attackers": len(attackers)} if attackers else {}),
            **({"without": without} if without else {}),
        )
        if self.strategy is not None:
            self._record_fleet(self.strategy)
            if self.config.validates:
                level_of = {each: self.strategy.level_of(each).number for each in clients.values()}
                validated = {n for each, n in level_of.items() if each.profile.validation}
                self.best.say_what_counts(set(level_of.values()), validated)

    def replied(self, round: int, done: int, of: int) -> None:
        self._answered = time.monotonic()
        self._tell(event="reply", round=round, done=done, of=of)

    def answered(self, round: int, what: str, done: int, of: int) -> None:
        """Report the number of answered tests: at the first, the last, and at times between."""
        now = self._answered = time.monotonic()
        if done in (0, of) or now - self._told >= TOLD_EVERY:
            self._told = now
            self._tell(event="answer", round=round, what=what, done=done, of=of)
        if not done:
            self._logged = now
        elif now - self._logged >= LOGGED_EVERY:
            self._logged = now
            log.info("%s", answers_line(round, what, done, of))

    def working(self, round: int, what: str, done: int, of: int) -> None:
        """Report the server's own work: at its start, its end, and at times between."""
        now, begins = time.monotonic(), (round, what) != self._work
        self._work = (round, what)
        if begins or done == of or now - self._told >= TOLD_EVERY:
            self._told = now
            self._tell(event="work", round=round, what=what, done=done, of=of, loss=self._loss())
        if now - max(self._answered, self._logged) >= LOGGED_EVERY:
            self._logged = now
            log.info("%s", work_line(round, what, done, of, self._loss()))

    def finished_round(self, metrics: Mapping[str, Any]) -> None:
        self.record.require_there()  # a checkpoint would create a deleted folder again
        number, every = metrics["round"], self.config.checkpoint.every
        due = number % every == 0 or number == self.config.rounds
        if self.strategy and number and due:  # round 0 is the start, which any new run has
            tensors, keep = self.strategy.state_dict(), self.config.checkpoint.keep
            state = {"metrics": dict(metrics)}
            checkpoint.save(self.record.checkpoints, number, tensors, state, keep)
        if self.strategy:
            self.best.consider(metrics, self.strategy.state_dict)
        self.record.append(metrics)  # type: ignore[arg-type]
        self._record_new_clients()
        self._tell(event="round", round=number)
        log.info("%s", round_line(metrics, self.config.rounds))

    def ended(self, reason: str | None) -> None:
        self._tell(event="end", reason=reason, crashed=self._crashed())

    def _record_fleet(self, strategy: NestedStrategy) -> None:
        """Write fleet.json; a resumed run keeps the facts of its first start."""
        fleet = fleet_record(strategy, self.command)
        first = read_fleet(self.record.fleet_file) if strategy.round else None
        self.fleet = resumed(first, fleet, strategy.round) if first else fleet
        write_fleet(self.record.fleet_file, self.fleet)

    def _record_new_clients(self) -> None:
        if self.strategy is None or self.fleet is None:
            return
        if set(map(str, self.strategy.clients)) - self.fleet["clients"].keys():
            self.fleet["clients"] |= clients_of(self.strategy)
            write_fleet(self.record.fleet_file, self.fleet)

    def _loss(self) -> float | None:
        """Return the mean training loss of the last round; None without accepted replies."""
        tally = self.strategy.tally if self.strategy else None
        return tally.mean_loss if tally and tally.accepted else None

    def _crashed(self) -> int:
        """Return the number of clients whose processes died in the last round."""
        if self.strategy is None:
            return 0
        tally = self.strategy.tally
        failures = [tally.failed, *(each.failed for each in tally.asked.values())]
        return sum(failed["crashed"] for failed in failures)

    def _tell(self, **event: Any) -> None:
        self.record.require_there()
        with self.progress.open("a") as lines:
            lines.write(json.dumps(event) + "\n")
