"""Makes the result tables of a comparison, for the terminal and as Markdown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, JustifyMethod
from rich.filesize import decimal
from rich.table import Table as RichTable
from rich.text import Text

from nestfl.comparing.differences import Difference, baseline_of, difference
from nestfl.comparing.drops import drops_of
from nestfl.comparing.fairness import COST_NAMES, Costs
from nestfl.comparing.results import Group, Spent, Target, score_names
from server_app.report.blocks import Table
from training.perplexity import is_perplexity, shown

PLAIN_WIDTH = 160
"""Columns of a table if the output is no terminal."""


@dataclass(frozen=True)
class ResultTable(Table):
    """A table of a report that can also be printed, or written as Markdown."""

    def markdown(self) -> str:
        """Return the table as Markdown."""
        lines = [
            f"### {self.heading}\n",
            _markdown_row(self.columns),
            _markdown_row(["---", *("---:" for _ in self.columns[1:])]),
            *map(_markdown_row, self.rows),
            *(f"\n{note}" for note in self.notes),
        ]
        return "\n".join(lines) + "\n"

    def show(self, console: Console) -> None:
        """Print the table; if the output is no terminal, without colours and as wide as needed."""
        if not console.is_terminal:
            console = Console(file=console.file, width=PLAIN_WIDTH, color_system=None)
        console.print(f"\n{self.heading}", style="bold", highlight=False, markup=False)
        table = RichTable(box=box.SIMPLE_HEAD if console.is_terminal else None)
        for number, column in enumerate(self.columns):
            side: JustifyMethod = "right" if number else "left"
            table.add_column(Text(column), justify=side, no_wrap=not number)
        for row in self.rows:
            table.add_row(*map(Text, row))  # brackets are no markup
        console.print(table)
        for note in self.notes:
            console.print(note, highlight=False, markup=False)


def cost_table(methods: Sequence[Costs], notes: Sequence[str] = ()) -> ResultTable:
    """Return the table of each method's costs by level on a device."""
    rows = []
    for each in methods:
        for level in each.levels:
            amounts = [level.parameters, level.macs, level.bytes, level.memory]
            cells = [count(amounts[0]), count(amounts[1]), *map(decimal, amounts[2:])]
            rows.append([each.name, str(level.number), *cells])
    return ResultTable("What levels cost", ["", "level", *COST_NAMES.values()], rows, notes)


def accuracy_table(groups: Sequence[Group]) -> ResultTable:
    """Return the final accuracies of all groups, without those of exits."""
    names = [name for name in _whole_names(groups) if not is_perplexity(name)]
    rows = []
    for group in groups:
        cells = [mean_and_deviation(list(group.values(name).values())) for name in names]
        rows.append([group.name, str(len(group.results)), *cells, _rise(group)])
    return ResultTable(
        f"Accuracy in percent, {_over(groups)}",
        ["", "seeds", *names, "rise"],
        rows,
        [
            *(
                ["Cis: the whole collaborative system, served as a run's own setting says."]
                * ("cis" in names)
            ),
            *(["Best: the mean after the best round by validation data."] * ("best" in names)),
            "Rise: of the mean over the levels, in the last fifth of the rounds, in points.",
        ],
    )


def perplexity_tables(groups: Sequence[Group]) -> list[ResultTable]:
    """Return the final perplexities of all groups, if they are language models."""
    names = [name for name in _whole_names(groups) if is_perplexity(name)]
    if not names:
        return []
    rows = [
        [group.name, *(_perplexities(list(group.values(name).values())) for name in names)]
        for group in groups
    ]
    columns = ["", *(name.rpartition(" ")[0] for name in names)]
    note = "The lower, the better; worst is the highest. Of clients it is the mean of their own."
    return [ResultTable(f"Perplexity, {_over(groups)}", columns, rows, [note])]


def _perplexities(values: Sequence[float]) -> str:
    if not values:
        return "-"
    mean = shown(statistics.fmean(values))
    return f"{mean} ± {shown(statistics.stdev(values))}" if len(values) > 1 else mean


def _whole_names(groups: Sequence[Group]) -> list[str]:
    """Return the names of scores that are not of exits."""
    return [name for name in score_names(groups) if ", exit" not in name]


def exit_tables(groups: Sequence[Group]) -> list[ResultTable]:
    """Return the exits' accuracies of levels with several exits; empty without any."""
    names = [name for name in score_names(groups) if ", exit" in name]
    exits = list(dict.fromkeys(name.partition(", ")[2] for name in names))
    rows = []
    for group in groups:
        for level in dict.fromkeys(name.partition(", ")[0] for name in names):
            values = [list(group.values(f"{level}, {each}").values()) for each in exits]
            if any(values):
                rows.append([f"{group.name}: {level}", *map(mean_and_deviation, values)])
    heading = f"Exits: accuracy in percent, {_over(groups)}"
    return [ResultTable(heading, ["", *exits], rows)] if rows else []


def target_table(groups: Sequence[Group], target: Target) -> ResultTable:
    """Return the costs of training until an accuracy reached its target."""
    rows = []
    for group in groups:
        found = [result.spent_until(target) for result in group.results]
        reached = [spent for spent in found if spent is not None]
        cells = ["-"] * 3
        if reached:
            cells = [f"{_mean(spent.rounds for spent in reached):.1f}", *_amounts(reached)]
        rows.append([group.name, f"{len(reached)} of {len(found)}", *cells])
    return ResultTable(
        f"To {target}",
        ["", "runs that reached it", "rounds", "bytes", "training MACs"],
        rows,
        ["Means over the runs that reached it, at the tests that were made. Bytes are of training, "
         "both ways, without tests and statistics; MACs are of the replies that were taken, three "
         "forward passes a step."],
    )  # fmt: skip


def computation_table(groups: Sequence[Group], target: Target) -> ResultTable | None:
    """Return the clients' computation until a target (FedFA's Table 2); None if not recorded."""
    rows = []
    for group in groups:
        if (found := group.computation(target)) is not None:
            epochs = "-" if found.epochs is None else f"{found.epochs:.1f}"
            tmac = "-" if found.tmac is None else count(found.tmac)
            rows.append([group.name, count(found.mace), epochs, tmac])
    if not rows:
        return None
    return ResultTable(
        "Computation" if target.share is None else f"Computation to {target}",
        ["", "MACE", "T·E", "TMAC"],
        rows,
        ["MACE: MACs of one local epoch of all clients of a round, the mean over rounds and runs. "
         "T·E: rounds times local epochs, and TMAC: MACE x T·E, means over the runs that reached "
         "the target. MACs are of forward passes."],
    )  # fmt: skip


def _amounts(reached: Sequence[Spent]) -> list[str]:
    sent, macs = _mean(spent.bytes for spent in reached), _mean(spent.macs for spent in reached)
    return [decimal(round(sent)), count(macs) if macs else "-"]


def difference_table(groups: Sequence[Group], baseline: Mapping[str, str]) -> ResultTable | None:
    """Return each group's difference from its baseline; None without a pair of runs."""
    names = _whole_names(groups)
    rows = []
    for group in groups:
        if (base := baseline_of(group, groups, baseline)) is None:
            continue
        for name in names:
            found = difference_of(group, base, name)
            if found is not None:
                unit = 1 if is_perplexity(name) else 100
                rows.append([
                    f"{group.name}: {name}",
                    f"{unit * found.mean:+.1f}",
                    f"{unit * found.low:+.1f} to {unit * found.high:+.1f}",
                    str(found.pairs),
                    found.verdict,
                ])  # fmt: skip
    if not rows:
        return None
    chosen = " ".join(f"{key}={value}" for key, value in baseline.items())
    return ResultTable(
        f"Differences to {chosen} in points, paired over seeds",
        ["", "mean", "95 % interval", "seeds", "verdict"],
        rows,
        ["Bootstrap interval of the mean; a verdict takes three seeds, an interval without 0, and "
         "a paired t-test that agrees.",
         *(["Perplexities are no percents, and better where they are lower."]
           if any(map(is_perplexity, names)) else [])],
    )  # fmt: skip


def drop_table(groups: Sequence[Group]) -> ResultTable | None:
    """Return each group's accuracy drops under attacks; None without a pair of runs."""
    rows = []
    for group in groups:
        for score, drop in drops_of(group, groups).items():
            shares = (drop.clean, drop.attacked, drop.by_seed)
            cells = [mean_and_deviation(list(each.values())) for each in shares]
            rows.append([f"{group.name}: {score}", *cells, str(len(drop.by_seed))])
    if not rows:
        return None
    return ResultTable(
        "Accuracy drop under attack, in percent",
        ["", "without attack", "under attack", "drop", "seeds"],
        rows,
        ["Drop: (without - under) / without, of runs of the same seed. The full model is the last "
         "level; personal is what honest clients have trained, before it is averaged."],
    )  # fmt: skip


def difference_of(group: Group, base: Group, score: str) -> Difference | None:
    """Return a score's difference from the baseline; None if no seed has both."""
    ours, theirs = group.values(score), base.values(score)
    if not ours.keys() & theirs.keys():
        return None
    return difference(ours, theirs, lower_is_better=is_perplexity(score))


def default_target(
    groups: Sequence[Group], score: str = Target.score, chance: float = 0.0
) -> Target:
    """Return the lowest last accuracy of all runs, in whole percents, but at least `chance`.

    All runs have reached this target, unless one ended below chance.
    """
    last = [share for group in groups for share in group.values(score).values()]
    if not last:
        return Target(None, score)
    least = math.ceil(round(100 * chance, 6))
    return Target(max(math.floor(round(100 * min(last), 6)), least) / 100, score)


def mean_and_deviation(shares: Sequence[float]) -> str:
    """Return shares in percent: their mean, with their deviation if there are several."""
    if not shares:
        return "-"
    mean = f"{100 * statistics.fmean(shares):.1f}"
    return f"{mean} ± {100 * statistics.stdev(shares):.1f}" if len(shares) > 1 else mean


def count(number: float) -> str:
    """Return a number in thousands, millions and so on: 1.23 M."""
    for power, letter in ((12, " T"), (9, " G"), (6, " M"), (3, " k")):
        if number >= 10**power:
            return f"{number / 10**power:.3g}{letter}"
    return f"{number:g}"


def _rise(group: Group) -> str:
    rises = [result.rise for result in group.results if result.rise is not None]
    return f"{100 * _mean(rises):+.1f}" if rises else "?"


def _over(groups: Sequence[Group]) -> str:
    seeds = {len(group.results) for group in groups}
    if seeds == {1}:
        return "one run each"
    number = str(max(seeds)) if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)}"
    return f"mean ± deviation over {number} seeds"


def _mean(numbers: Iterable[float]) -> float:
    return statistics.fmean(numbers)


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
