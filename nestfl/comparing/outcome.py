"""Collects a comparison's facts before it runs, its results, and the files of both."""

from __future__ import annotations

import json
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nestfl.comparing.comparison import Comparison
from nestfl.comparing.csv_table import csv_of
from nestfl.comparing.differences import baseline_of
from nestfl.comparing.drops import drops_of
from nestfl.comparing.fairness import (
    Costs,
    costs_of_rivals,
    other_settings,
    other_steps,
    still_improving,
    unequal_levels,
)
from nestfl.comparing.result_tables import (
    ResultTable,
    accuracy_table,
    computation_table,
    cost_table,
    default_target,
    difference_of,
    difference_table,
    drop_table,
    exit_tables,
    perplexity_tables,
    target_table,
)
from nestfl.comparing.results import IMPROVING, Group, Result, Target, grouped, score_names
from nestfl.comparing.serving_rows import serving_table, settings_json
from server_app.record.files import REPORT_FILE, write_text
from server_app.record.metrics import finite

MARKDOWN_FILE, CSV_FILE, JSON_FILE = "table.md", "table.csv", "table.json"


@dataclass(frozen=True)
class Known:
    """Facts before any run: the costs of levels, and unequal conditions."""

    costs: Sequence[Costs] = ()
    tables: Sequence[ResultTable] = ()
    warnings: Sequence[str] = ()

    @classmethod
    def of(cls, comparison: Comparison) -> Known:
        """Return the facts of a comparison's settings."""
        differing = other_settings(comparison.trials, comparison.configs)
        sets = costs_of_rivals(comparison.trials, comparison.configs)
        costs = [each for rivals in sets for each in rivals]
        if not costs:
            return cls(warnings=differing)
        judged = [unequal_levels(rivals) for rivals in sets]
        unequal = [told for warnings, _ in judged for told in warnings]
        notes = [told for _, notes in judged for told in notes]
        return cls(costs, [cost_table(costs, notes)], [*unequal, *differing])


@dataclass(frozen=True)
class Outcome:
    """The results of the runs that have finished."""

    groups: Sequence[Group]
    baseline: Mapping[str, str]
    """The choices that others are compared to."""
    target: Target
    known: Known
    warnings: Sequence[str]
    """Warnings that follow from the runs."""

    @classmethod
    def of(
        cls,
        comparison: Comparison,
        baseline: Mapping[str, str],
        target: Target,
        known: Known,
    ) -> Outcome:
        """Return the results of the finished runs; unfinished runs are named."""
        classes = [each.dataset.num_classes for each in comparison.configs]
        chance = max((1 / number for number in classes), default=0.0)
        found = cls.of_results(comparison.results(), baseline, target, known, chance)
        missing = comparison.unfinished()
        if not missing:
            return found
        told = (
            f"{len(missing)} of {len(comparison.trials)} runs have not finished, and are not in "
            f"these tables: {'; '.join(map(str, missing))}"
        )
        return replace(found, warnings=[told, *found.warnings])

    @classmethod
    def of_results(
        cls,
        results: Sequence[Result],
        baseline: Mapping[str, str],
        target: Target,
        known: Known = Known(),  # noqa: B008  (frozen)
        chance: float = 0.0,
    ) -> Outcome:
        """Return the outcome of these results; `chance` is a guess's accuracy, 0 if unknown."""
        groups = grouped(results)
        if target.share is None:
            target = default_target(groups, target.score, chance)
        warnings = [*other_steps(results), *still_improving(groups, IMPROVING)]
        return cls(groups, baseline, target, known, warnings)

    def tables(self) -> list[ResultTable]:
        """Return its tables: accuracies, exits, settings, attacks, a target's cost, differences."""
        if not self.groups:
            return []
        found = [accuracy_table(self.groups), *perplexity_tables(self.groups)]
        found += exit_tables(self.groups)
        found += filter(None, [serving_table(self.groups), drop_table(self.groups)])
        if self.target.share is not None:
            found.append(target_table(self.groups, self.target))
        found += filter(None, [
            computation_table(self.groups, self.target),
            difference_table(self.groups, self.baseline),
        ])  # fmt: skip
        return found

    def write(self, comparison: Comparison) -> list[str]:
        """Write the tables and the report into the comparison's folder; return the files' names."""
        for name, text in self.texts().items():
            write_text(comparison.folder / name, text)
        self.write_report(comparison.folder / REPORT_FILE)
        return [MARKDOWN_FILE, CSV_FILE, JSON_FILE, REPORT_FILE]

    def texts(self) -> dict[str, str]:
        """Return the tables as Markdown, CSV and JSON, by the names of their files."""
        found = self._json()
        return {
            MARKDOWN_FILE: self._markdown(),
            CSV_FILE: csv_of(found),
            JSON_FILE: json.dumps(finite(found), indent=2) + "\n",
        }

    def write_report(self, file: Path, at_best: bool = False, figures: Path | None = None) -> None:
        """Write the tables, and pictures of the runs, as one HTML file.

        With `at_best` the pictures' scores are those after each run's best round.
        """
        from server_app.report.page import write_report  # slow to import

        results = [result for group in self.groups for result in group.results]
        labels = {result.directory: result.trial.choices for result in results}
        tables = [*self.tables(), *self.known.tables]
        if told := self._all_warnings():
            tables.append(ResultTable("Warnings", [""], [[each] for each in told]))
        title = results[0].directory.parent.name
        write_report(
            list(labels),
            file,
            title=title,
            tables=tables,
            labels=labels,
            at_best=at_best,
            figures=figures,
        )

    def _all_warnings(self) -> list[str]:
        return [*self.known.warnings, *self.warnings]

    def _markdown(self) -> str:
        parts = [table.markdown() for table in (*self.known.tables, *self.tables())]
        if told := self._all_warnings():
            parts.append("### Warnings\n\n" + "".join(f"- {each}\n" for each in told))
        return "\n".join(parts)

    def _json(self) -> dict[str, Any]:
        settings = settings_json(self.groups)
        return {
            "baseline": dict(self.baseline),
            "target": self.target.share,
            "target_score": self.target.score,
            "costs": [asdict(each) for each in self.known.costs],
            "groups": [self._group(group) for group in self.groups],
            **({"settings": settings} if settings else {}),
            "warnings": self._all_warnings(),
        }

    def _group(self, group: Group) -> dict[str, Any]:
        base = baseline_of(group, self.groups, self.baseline)
        scores = {}
        for name in score_names([group]):
            values = group.values(name)
            found = difference_of(group, base, name) if base else None
            scores[name] = {
                **_spread(values.values()),
                "by_seed": values,
                "difference": asdict(found) if found else None,
            }
        spent = [result.spent_until(self.target) for result in group.results]
        runs = [
            {
                "run": result.trial.name,
                "seed": result.trial.seed,
                "rise": result.rise,
                "to_target": asdict(each) if each else None,
            }
            for result, each in zip(group.results, spent, strict=True)
        ]
        reached = [asdict(each) for each in spent if each]
        to_target = {
            name: statistics.fmean(each[name] for each in reached)
            for name in ("rounds", "bytes", "macs")
            if reached
        }
        computation = group.computation(self.target)
        drops = {
            name: {**asdict(drop), "by_seed": drop.by_seed, **_spread(drop.by_seed.values())}
            for name, drop in drops_of(group, self.groups).items()
        }
        return {
            "choices": dict(group.choices),
            "scores": scores,
            **({"drops": drops} if drops else {}),
            "to_target": {"runs": len(reached), **to_target},
            **({"computation": asdict(computation)} if computation else {}),
            "runs": runs,
        }


def _spread(values: Collection[float]) -> dict[str, float | None]:
    return {
        "mean": statistics.fmean(values),
        "deviation": statistics.stdev(values) if len(values) > 1 else None,
    }
