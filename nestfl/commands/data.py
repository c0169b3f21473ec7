"""`nestfl data`: shows a data set, the problems in it, and its partition among clients."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nestfl.commands.group import app
from nestfl.commands.shared_options import FILE, refuse
from nestfl.commands.takes_overrides import TakesOverrides
from protocol.printable import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from data.foreign_files import Broken
    from data.overview import Dealt, Found
    from data.spec import DatasetSpec


@app.command(
    "data",
    cls=TakesOverrides,
    epilog="""\b
    Examples:
      nestfl data photos/
      nestfl data reviews.csv dataset.text=body dataset.label=stars
      nestfl data watch.parquet dataset.label=exercise dataset.window=100
      nestfl data photos/ dataset.partition=dirichlet fleet.clients=10 --plot p.svg
      nestfl data dataset=cifar10 dataset.path=cifar""",
)
@click.argument(
    "arguments",
    nargs=-1,
    metavar="[PATH] [KEY=VALUE]...",
    help="A folder or a file, and settings that differ from conf/, as of nestfl run.",
)
@click.option(
    "--plot", metavar="FILE", type=FILE, help="Draw classes and clients to this .svg or .png file."
)
@click.option("--json", is_flag=True, help="Print JSON instead of tables.")
def data_command(arguments: tuple[str, ...], plot: Path | None, json: bool) -> None:
    """Look at data: classes, sizes, broken files, and what each client would get."""
    try:
        looked = look(arguments)
        if plot is not None:
            draw(looked, plot)
    except (ValueError, OSError) as error:
        refuse("data", error)
    click.echo(as_json(looked)) if json else show(looked)
    raise SystemExit(2 if looked.problem else 0)


SHADES = " ░▒▓█"
MOST_CLASSES, MOST_CLIENTS, MOST_BROKEN = 40, 40, 50
"""Most classes, clients and broken files on a terminal; --json and --plot have all."""
LONGEST_LINE = 4000
"""Most characters of a printed line: names of files, classes and clients may hold anything."""


@dataclass(frozen=True)
class Looked:
    """The facts of a data set, as far as it can be read."""

    spec: DatasetSpec
    """Complete, unless there is a problem."""
    found: Found | None
    """The user's own files; None for a data set of the catalogue."""
    broken: tuple[Broken, ...] = ()
    problem: str | None = None
    """Reason why a run would not start."""
    train: tuple[int, ...] = ()
    test: tuple[int, ...] = ()
    """Number of examples by class."""
    test_part: str = ""
    dealt: Dealt | None = None


def look(arguments: Sequence[str]) -> Looked:
    """Return the facts of the data that a run with these overrides would take."""
    from data.foreign_files import BrokenFilesError
    from data.overview import (
        broken_in,
        class_counts,
        dealt,
        found_in,
        labels_of_split,
        test_part,
    )
    from data.splits import splits_of
    from nestfl.watching.log_colours import colour_for_terminals
    from server_app.config.composing import compose_dataset
    from server_app.config.overrides import with_absolute_paths

    colour_for_terminals()
    overrides = with_absolute_paths(Path.cwd(), _overrides(arguments))
    spec = compose_dataset(overrides, look=False)
    found = found_in(spec) if spec.is_own else None
    try:
        spec = compose_dataset(overrides)
        splits, parted = splits_of(spec), dealt(spec)
    except ValueError as error:
        cause = error if isinstance(error, BrokenFilesError) else error.__cause__
        told = cause.broken if isinstance(cause, BrokenFilesError) else ()
        broken = broken_in(spec) if spec.is_own else {}
        places = {each.place for each in broken}
        others = [each for each in told if each.place not in places]
        return Looked(spec, found, (*broken, *others), str(error))
    train, test = (tuple(class_counts(labels_of_split(part, spec), spec)) for part in splits)
    where = test_part(spec) if spec.is_own else ""
    return Looked(spec, found, (), None, train, test, where, parted)


def _overrides(arguments: Sequence[str]) -> list[str]:
    """Return the arguments as overrides; a path is replaced by its kind of data set."""
    from data.homes import with_home
    from data.listing import guessed
    from server_app.config.composing import ConfigError

    settings = [text for text in arguments if re.match(r"[\w.+~]+=", text)]
    paths = [text for text in arguments if text not in settings]
    if not paths:
        return settings
    if len(paths) > 1:
        raise ConfigError(f"{' and '.join(paths)}: expected one path, and settings as key=value")
    chosen = [] if _chooses_data(settings) else [f"dataset={guessed(with_home(paths[0]))}"]
    return [*chosen, f"dataset.path={paths[0]}", *settings]


def _chooses_data(settings: Sequence[str]) -> bool:
    return any(text.startswith(("dataset=", "experiment=")) for text in settings)


# --- on the terminal -------------------------------------------------------------------------


def show(looked: Looked, console: Console | None = None) -> None:
    """Print the facts, the problems, and a line for each client."""
    from rich.console import Console

    console = console or Console()
    for line in _facts(looked):
        _say(console, line)
    if looked.broken:
        for broken in looked.broken[:MOST_BROKEN]:
            _say(console, f"  {broken}")
        _say_more(console, len(looked.broken) - MOST_BROKEN, "broken files or rows")
    if looked.problem is not None:
        _say(console, f"nestfl run would stop: {looked.problem}", "red")
    if looked.dealt is not None:
        console.print(_class_table(looked))
        _say_more(console, len(looked.train) - MOST_CLASSES, "classes")
        _show_dealt(console, looked, looked.dealt)


def _say(console: Console, line: str, style: str | None = None) -> None:
    """Print a line without control characters, which could move the cursor or colour it."""
    text = printable(line, LONGEST_LINE)
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


def _say_more(console: Console, more: int, what: str) -> None:
    if more > 0:
        console.print(f"  and {more} more {what}: --json has all", highlight=False)


def _facts(looked: Looked) -> list[str]:
    """Return the known facts, a line each."""
    spec, found = looked.spec, looked.found
    lines = [f"{spec.name}: {spec.path or 'bundled, or published on Hugging Face'}"]
    if found is not None and found.seen is not None:
        sizes = ", ".join(
            f"{width}x{height} ({count})"
            for (width, height), count in found.seen.sizes.most_common(5)
        )
        more = len(found.seen.sizes) - 5
        lines.append(f"pixels: {sizes}{f' and {more} other sizes' if more > 0 else ''}")
        lines.append(f"grey: {found.seen.grey} of {found.seen.sizes.total()} images")
    if looked.problem is None and spec.holds == "images":
        size, channels = spec.input_shape["image_size"], spec.input_shape["in_channels"]
        lines.append(f"taken as: {size}x{size} pixels, {'RGB' if channels == 3 else 'grey'}")
    if looked.problem is None and spec.holds == "series":
        lines += _series_facts(spec, found)
    if spec.mean is not None and spec.std is not None:
        lines.append(f"mean {list(spec.mean)}, deviation {list(spec.std)}")
    if found is not None and looked.problem is not None and found.classes:
        classes = ", ".join(f"{name} ({n})" for name, n in found.classes.most_common(MOST_CLASSES))
        lines.append(f"classes: {classes}")
    if found is not None and found.files.others:
        kinds = ", ".join(f"{n} {suffix or 'without'}" for suffix, n in found.files.others.items())
        lines.append(f"not read, by suffix: {kinds}")
    if found is not None and found.files.empty:
        lines.append(f"folders without images: {', '.join(found.files.empty)}")
    if looked.test_part:
        lines.append(f"test part: {looked.test_part}")
    if looked.broken:
        lines.append(f"broken: {len(looked.broken)}")
    return lines


def _series_facts(spec: DatasetSpec, found: Found | None) -> list[str]:
    """Return the facts of a table of numbers."""
    from server_app.report.amounts import counted

    columns = spec.columns or ()
    each = "rows" if spec.length == 1 else f"series of {spec.length} steps"
    lines = [f"taken as: {each} of {counted(len(columns), 'column')}"]
    lines.append(f"columns: {', '.join(columns)}")
    if found is not None and found.left_out:
        lines.append(f"rows in no window of {spec.window}: {found.left_out}")
    return lines


def _class_table(looked: Looked) -> Table:
    from rich.markup import escape
    from rich.table import Table

    from data.overview import class_names

    spec = looked.spec
    table = Table("class", "train", "test")
    for column in table.columns[1:]:
        column.justify = "right"
    rows = zip(class_names(spec), looked.train, looked.test, strict=True)
    for name, train, test in list(rows)[:MOST_CLASSES]:
        table.add_row(escape(printable(name)), str(train), str(test))
    if len(looked.train) > 1:
        table.add_row("all", str(sum(looked.train)), str(sum(looked.test)), style="bold")
    return table


def _show_dealt(console: Console, looked: Looked, parted: Dealt) -> None:
    from data.overview import notes
    from server_app.report.amounts import counted

    spec = looked.spec
    console.print(
        f"partition {spec.partition}: {counted(len(parted.names), 'client')}; how many examples "
        f"each has, and of which classes, in the order above ({SHADES[1:]}: up to "
        f"{parted.counts.max()})",
        highlight=False,
    )
    names = [printable(name) for name in parted.names[:MOST_CLIENTS]]
    longest = max(map(len, names))
    for name, counts in zip(names, parted.counts[:MOST_CLIENTS], strict=True):
        cells = "".join(_shade(n, int(parted.counts.max())) for n in counts[:MOST_CLASSES])
        _say(console, f"  {name:>{longest}} {counts.sum():>7}  {cells}")
    _say_more(console, len(parted.names) - MOST_CLIENTS, "clients")
    for line in notes(looked.spec, parted):
        _say(console, line)


def _shade(count: int, most: int) -> str:
    steps = len(SHADES) - 1
    return SHADES[0] if not count else SHADES[max(1, round(steps * count / most))]


# --- for programs, and as a picture ----------------------------------------------------------


def as_json(looked: Looked) -> str:
    from data.overview import class_names

    spec, found = looked.spec, looked.found
    told: dict[str, Any] = {
        "dataset": spec.name,
        "path": spec.path,
        "holds": spec.holds,
        "problem": looked.problem,
        "broken": [str(broken) for broken in looked.broken],
    }
    if found is not None and found.seen is not None:
        sizes = found.seen.sizes.most_common()
        told["sizes"] = {f"{width}x{height}": count for (width, height), count in sizes}
        told["grey"] = found.seen.grey
    if looked.dealt is None:
        told["classes"] = dict(found.classes) if found is not None else {}
        return json.dumps(told, indent=2)
    names = class_names(spec)
    by_class = zip(names, looked.train, looked.test, strict=True)
    told["classes"] = {name: {"train": train, "test": test} for name, train, test in by_class}
    told |= {"input": spec.input_shape, "mean": spec.mean, "std": spec.std}
    if spec.holds == "series":
        told |= {"columns": spec.columns, "left_out": found.left_out if found else 0}
    told["test"] = looked.test_part or None
    told["partition"] = spec.partition
    told["clients"] = {
        client: dict(zip(names, counts.tolist(), strict=True))
        for client, counts in zip(looked.dealt.names, looked.dealt.counts, strict=True)
    }
    alone = looked.dealt.only_one_has()
    told["only_one_client"] = {names[k]: looked.dealt.names[who] for k, who in alone.items()}
    return json.dumps(told, indent=2)


def draw(looked: Looked, path: Path) -> None:
    """Draw the number of examples of each class and client."""
    from data.overview import class_names
    from server_app.config.composing import ConfigError

    if looked.dealt is None:
        raise ConfigError(f"nothing to draw: {looked.problem}")
    from matplotlib.figure import Figure

    parted, names = looked.dealt, class_names(looked.spec)
    width = min(16.0, 3 + 0.3 * len(parted.names))
    figure = Figure(figsize=(width, min(12.0, 2 + 0.25 * len(names))), layout="constrained")
    axes = figure.add_subplot()
    shown = axes.imshow(parted.counts.T, aspect="auto", cmap="viridis", interpolation="nearest")
    if len(names) <= MOST_CLASSES:
        axes.set_yticks(range(len(names)), names)
    if len(parted.names) <= MOST_CLIENTS:
        axes.set_xticks(range(len(parted.names)), parted.names, rotation=90)
    axes.set(xlabel="client", ylabel="class", title=f"partition {looked.spec.partition}")
    figure.colorbar(shown, label="examples")
    try:
        figure.savefig(path, dpi=150)
    except ValueError as error:  # names the formats that there are
        raise ConfigError(f"cannot draw to {path}: {error}") from None
