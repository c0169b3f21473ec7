"""Lists faults that no test can notice, because no promised behaviour changes with them.

The key of a fault is its file, its source line, and the change. After an edit of that line the
reason has to be checked again.
"""

from __future__ import annotations

NOISE = "a margin for the rounding of doubles, which is a thousand times smaller than either"
SPEED = "sums are exact: when and where they are joined changes no bit of them"

EQUAL: dict[tuple[str, str, str], str] = {
    (
        "models/slicing.py",
        'kept = math.floor(exact + 1e-6) if self.rounding == "floor" else math.ceil(exact - 1e-6)',
        "1e-6 -> 2e-06",
    ): NOISE,
    (
        "strategies/aggregation/exact_sums.py",
        "sums = cls(0)",
        "0 -> 1",
    ): "the rows are replaced in the next line",
    (
        "strategies/aggregation/exact_sums.py",
        "rows = self.rows[power - self.lowest : top - self.lowest + 1]",
        "1 -> 2",
    ): SPEED,
    (
        "strategies/aggregation/exact_sums.py",
        "self._make_rows(0, 1)",
        "0 -> 1",
    ): "row 0 is always there",
    (
        "strategies/aggregation/exact_sums.py",
        "if high - low + 1 > len(self.rows):",
        "high - low + 1 > len(self.rows) -> (high - low + 1 >= len(self.rows))",
    ): "as many rows as there are: they are copied for nothing",
    (
        "strategies/aggregation/exact_sums.py",
        "if high - low + 1 > len(self.rows):",
        "1 -> 2",
    ): "as many rows as there are: they are copied for nothing",
    (
        "strategies/aggregation/exact_sums.py",
        "threads = torch.get_num_threads() if parallel else 0",
        "0 -> 1",
    ): "the number is not used where the loop is not parallel",
    (
        "strategies/aggregation/nested_mean.py",
        "MAPS_BEFORE_COUNTING = 8",
        "8 -> 9",
    ): SPEED,
    (
        "strategies/aggregation/nested_mean.py",
        "if len(self._uncounted) > MAPS_BEFORE_COUNTING:",
        "len(self._uncounted) > MAPS_BEFORE_COUNTING"
        " -> (len(self._uncounted) >= MAPS_BEFORE_COUNTING)",
    ): SPEED,
    (
        "strategies/aggregation/nested_mean.py",
        "if len(self._uncounted) > MAPS_BEFORE_COUNTING:",
        "len(self._uncounted) > MAPS_BEFORE_COUNTING"
        " -> (len(self._uncounted) < MAPS_BEFORE_COUNTING)",
    ): SPEED,
    (
        "strategies/aggregation/exact_sums.py",
        "change, size = np.zeros(2), np.zeros(2)",
        "2 -> 3",
    ): "nobody looks at a third number",
    (
        "strategies/aggregation/exact_sums.py",
        "new = values[run * length : (run + 1) * length]",
        "1 -> 2",
    ): "only the first `length` values are looked at",
    (
        "strategies/levels/planning.py",
        "steps = math.floor(1 / self.width_step + 1e-9)",
        "1e-9 -> 2e-09",
    ): NOISE,
    (
        "strategies/levels/planning.py",
        "return [round(self.width_step * step, 9) for step in range(steps, 0, -1)]",
        "9 -> 10",
    ): NOISE,
    (
        "strategies/levels/planning.py",
        "return (round(imbalance, 9), round(abs(self.excess), 9), -self.split.depth)",
        "9 -> 10",
    ): NOISE,
    (
        "strategies/levels/planning.py",
        "lowest = below[-1] if below else Split(0, 1.0)",
        "1.0 -> 2.0",
    ): "no pair has depth 0, so the width beside it is not looked at",
    (
        "strategies/levels/planning.py",
        "if all(candidate.excess < -tolerance for candidate in at_width):",
        "candidate.excess < -tolerance -> (candidate.excess <= -tolerance)",
    ): "narrower pairs cost less, so none behind this width is within the tolerance",
    (
        "strategies/levels/planning.py",
        "labels: list[int] = KMeans(k, n_init=10, random_state=0).fit_predict(logs).tolist()",
        "10 -> 11",
    ): "the best of ten starts is that of eleven, in one dimension",
    (
        "strategies/levels/planning.py",
        "labels: list[int] = KMeans(k, n_init=10, random_state=0).fit_predict(logs).tolist()",
        "0 -> 1",
    ): "the best of ten starts is the same for all seeds, in one dimension",
    (
        "inference/thresholds.py",
        "low, high = -50.0, 50.0  # bounds of log r: all samples at the first exit, or at the last",
        "50.0 -> 100.0",
    ): "shares of e^-50 and of e^-100 are both none",
    (
        "inference/thresholds.py",
        "for _ in range(100):",
        "100 -> 101",
    ): "after 60 halvings the two ends are neighbours",
    (
        "inference/thresholds.py",
        "if _average(costs, _geometric(middle, len(costs))) > budget:",
        "_average(costs, _geometric(middle, len(costs))) > budget"
        " -> (_average(costs, _geometric(middle, len(costs))) >= budget)",
    ): "the search ends at the same ratio from below",
    (
        "inference/thresholds.py",
        "due = math.ceil(samples * share - 1e-9) - int(left.sum())",
        "1e-9 -> 2e-09",
    ): NOISE,
    (
        "inference/thresholds.py",
        "last = torch.ones(1, scores.shape[1], dtype=torch.bool)",
        "1 -> 2",
    ): "only the first row of them is ever the first of the largest",
    (
        "inference/thresholds.py",
        "wanted = hits[-1].double().mean() - loss - 1e-9",
        "1e-9 -> 2e-09",
    ): NOISE,
    (
        "inference/thresholds.py",
        "if hits.gather(0, taken[None]).double().mean() < wanted:",
        "hits.gather(0, taken[None]).double().mean() < wanted"
        " -> (hits.gather(0, taken[None]).double().mean() <= wanted)",
    ): "an accuracy is never equal to what is wanted, which has a margin of 1e-9",
    (
        "strategies/nodes/enrolment.py",
        "if nodes and time.monotonic() - settled > patience / 6:",
        "time.monotonic() - settled > patience / 6 -> (time.monotonic() - settled >= patience / 6)",
    ): "no clock is read at that very moment",
    (
        "strategies/replies.py",
        'return trained.examples if self.method.federation.weighting == "examples" else 1',
        "1 -> 2",
    ): "a mean in which all weigh 2 is that in which all weigh 1",
    (
        "strategies/methods/scalefl.py",
        "if beta and number < len(logits):  # the last exit has nothing to learn from itself",
        "beta and number < len(logits) -> (beta or number < len(logits))",
    ): "what weighs 0, or is an answer's divergence from itself, adds 0",
}
"""The reason for each fault."""
