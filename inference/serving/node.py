"""A node: answers the samples it is certain of, and passes the features of the others on.

Each sample gets an answer even if all parents fail; a flag marks one that should have come from a
parent.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from inference.serving.batching import Batching
from inference.serving.forwarding import Forwarder, TransferLimit
from inference.serving.node_metrics import Metrics
from inference.serving.node_part import Form, NodePart, answer
from inference.serving.parent import ParentBusyError, ParentError
from inference.serving.refusal import MisplacedError, UnfitError
from inference.serving.samples import Compute, Computed, Samples
from inference.serving.wire import DEGRADED, HEADER, LIMITED, Answers, read_samples
from models.parts import Part

FOR_PARENTS = 0.75
"""Share of a request's time in which parents may answer; the rest is for the node's own answer."""


def computing(facts: NodePart, part: Part) -> Compute:
    """Return a function that computes samples with a part."""

    def compute(samples: Samples) -> Computed:
        logits, features = answer(facts, part, samples.features, samples.start)
        confidence, classes = logits.softmax(-1).max(-1)
        if not bool(confidence.isfinite().all()):
            raise UnfitError(
                "some values are too large: the scores of these samples are no numbers"
            )
        return Computed(classes.int(), confidence, Samples(facts.last, features))

    return compute


class Node:
    """Answers request bodies; `batching` computes them, `forwarder` has the parents."""

    def __init__(
        self,
        facts: NodePart,
        batching: Batching,
        forwarder: Forwarder,
        limit: TransferLimit,
        most: int,
        waiting: Callable[[], int] = int,
    ) -> None:
        self.facts, self.batching, self.forwarder, self.limit = facts, batching, forwarder, limit
        self.most = most
        """Most samples of a request."""
        self.waiting = waiting
        """Returns the number of samples that wait or are being computed."""
        self.metrics = Metrics()

    def largest_body(self, start: int) -> int:
        """Return the most bytes of a request that continues after unit `start`."""
        forms = self._forms(start)
        return HEADER + self.most * sum(form.bytes(self.facts.longest) for form in forms)

    def read(self, body: bytes, start: int) -> Samples:
        """Return the samples of a request: inputs (0), or features after a unit."""
        return Samples(start, read_samples(body, self._forms(start), self.facts.longest, self.most))

    async def answer(self, samples: Samples, left: float = math.inf) -> bytes:
        """Answer a request, if possible within the `left` seconds."""
        began = time.perf_counter()
        answers = await self.answer_samples(samples, left)
        self.metrics.requests["predict" if samples.start == 0 else "continue"] += 1
        self.metrics.took(time.perf_counter() - began)
        return answers.pack()

    def metrics_text(self) -> str:
        """Return the node's counts in Prometheus' text format."""
        sent, waiting = float(self.forwarder.sent_bytes), float(self.waiting())
        up = {parent.name: parent.up for parent in self.forwarder.parents}
        return self.metrics.text({"sent_bytes": sent, "waiting": waiting}, up)

    async def answer_samples(self, samples: Samples, left: float = math.inf) -> Answers:
        """Return the answers; after most of the `left` time, without a parent's."""
        until = asyncio.get_running_loop().time() + FOR_PARENTS * left
        computed = await self.batching(samples)
        answers = await self._passed_on(computed, self._own(computed), until)
        self.metrics.samples += len(samples)
        self.metrics.answered(answers.nodes, answers.exits.tolist())
        return answers

    def _own(self, computed: Computed) -> Answers:
        exits = torch.full_like(computed.classes, self.facts.exit, dtype=torch.uint8)
        nodes = (self.facts.name,) * len(exits)
        return Answers(computed.classes, computed.confidence, exits, torch.zeros_like(exits), nodes)

    async def _passed_on(self, computed: Computed, answers: Answers, until: float) -> Answers:
        """Return the answers, with a parent's in place of those below the threshold."""
        if not self.facts.parents:
            return answers
        unsure = torch.nonzero(~(computed.confidence >= self.facts.threshold)).flatten()
        if not len(unsure):
            return answers
        leaving, held_back = self._within_limit(unsure, computed.confidence)
        if len(held_back):
            self.metrics.limited += len(held_back)
            answers = answers.flagged(held_back, LIMITED)
        if not len(leaving):
            return answers
        try:
            others = await self.forwarder.send(computed.onward.rows(leaving), until)
        except ParentBusyError:
            self.metrics.limited += len(leaving)
            return answers.flagged(leaving, LIMITED)
        except ParentError:
            self.metrics.degraded += len(leaving)
            return answers.flagged(leaving, DEGRADED)
        self.metrics.forwarded += len(leaving)
        return answers.replaced(leaving, others)

    def _within_limit(self, unsure: Tensor, confidence: Tensor) -> tuple[Tensor, Tensor]:
        """Return the samples to send, the least certain first, and those beyond the rate limit."""
        taken = self.limit.take(len(unsure))
        if taken == len(unsure):
            return unsure, unsure[:0]
        order = unsure[torch.argsort(confidence[unsure], stable=True)]
        return order[:taken], order[taken:]

    def _forms(self, start: int) -> tuple[Form, ...]:
        if start in self.facts.takes:
            return self.facts.takes[start]
        units = [unit for unit in self.facts.takes if unit]
        what = "inputs" if start == 0 else f"features behind unit {start}"
        takes = [*(["inputs"] if 0 in self.facts.takes else []), *(f"unit {u}" for u in units)]
        raise MisplacedError(
            f"{self.facts.name} takes no {what}: it goes on from {', '.join(takes)}"
        )
