"""Checks of a sliceable network: those of models/checking.py, the mean, and the costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice

import torch

from models import Slice, SlicedNetwork, Task, Window, extract, slice_map
from models.checking import (
    CheckError,
    all_exits,
    check_buffers,
    check_builds,
    check_determinism,
    check_exits,
    check_gradients,
    check_leaving,
    check_masked,
    check_names,
    check_state,
    some_slices,
    with_short_texts,
)
from models.loading import network_to_load
from models.masking import randomised
from models.slicing import WindowKind, is_running_statistic
from strategies.aggregation.nested_mean import NestedMean
from strategies.aggregation.update import Update
from strategies.levels.cost import cost, macs_by_exit, price_of

WINDOWS: tuple[WindowKind, ...] = ("prefix", "lower-right", "middle", "random", "rolling")
"""Window kinds that cut a layer's inputs like the outputs they read."""


@dataclass(frozen=True)
class Finding:
    """The result of one check, with the change that a network needs to pass it."""

    name: str
    wrong: str | None = None
    checked: bool = True


def check_round_trip(task: Task) -> None:
    """Check that averaging untrained slices leaves every bit of the full network unchanged."""
    full = randomised(network_to_load(task, all_exits(task)))
    deep = [each for each in some_slices(task) if each.depth(task.units) == task.units]
    narrow = [each for each in deep if each.width != 1]  # the whole network cannot fail
    shallow = [each for each in some_slices(task) if each.width == 1 and each not in deep]
    # One slice for each kind of window.
    used = islice(cycle([*narrow, *shallow]), len(WINDOWS))
    if changed := changed_by_untrained(full, (task.build(held, "meta") for held in used)):
        raise CheckError(
            f"{', '.join(changed[:3])} of the full network changes when untrained slices are "
            "averaged: a tensor of the state must be a floating-point number or a count"
        )


def changed_by_untrained(full: SlicedNetwork, parts: Iterable[SlicedNetwork]) -> list[str]:
    """Return the tensors that change when untrained slices with different windows are averaged."""
    state, mean = full.state_dict(), NestedMean()
    for number, part in enumerate(parts):
        window = Window(WINDOWS[number % len(WINDOWS)], seed=5)
        where = slice_map(full, part, window, _bank_of_statistics(full, part))
        own = {name for name, region in where.regions.items() if region.banked}
        # Banked tensors are not in the full state, so there is nothing to compare.
        cut = replace(where, regions={n: r for n, r in where.regions.items() if n not in own})
        mean.add(Update(extract(state, cut), cut, 0.3))
    after = mean.result(state)
    return [name for name, tensor in state.items() if not torch.equal(after[name], tensor)]


def _bank_of_statistics(full: SlicedNetwork, part: SlicedNetwork) -> Callable[[str], str | None]:
    """Keep cut statistics in a bank, as methods do: they hold for one width only."""
    whole, cut = full.state_dict(), part.state_dict()

    def bank(name: str) -> str | None:
        own = is_running_statistic(name) and whole[name].shape != cut[name].shape
        return "own" if own else None

    return bank


def check_costs(task: Task) -> None:
    """Check that less width and less depth have fewer parameters and MACs."""
    whole, half = cost(task, Slice()), cost(task, Slice(width=0.5))
    for kind in ("parameters", "macs"):
        if half.of(kind) >= whole.of(kind):
            raise CheckError(
                f"half of the width has {half.of(kind):,} {kind}, the full network "
                f"{whole.of(kind):,}: ask slice.channels(FULL) for the numbers of channels"
            )
    first = cost(task, Slice(exits=(1,)))
    if task.units > 1 and first.macs >= whole.macs:
        raise CheckError(
            f"the slice up to unit 1 has {first.macs:,} MACs, the full network {whole.macs:,}: "
            "build and run nothing behind slice.exits[-1]"
        )


def check_walk(task: Task) -> None:
    """Check that nothing behind an exit has run when the exit answers."""
    counted = macs_by_exit(task, all_exits(task))
    alone = [cost(task, all_exits(task, unit)).macs for unit in range(1, task.units + 1)]
    for unit, (found, expected) in enumerate(zip(counted, alone, strict=True), 1):
        if found > expected:
            raise CheckError(
                f"{found:,} MACs have run when the exit behind unit {unit} answers, and "
                f"{expected:,} are needed: yield its logits before anything behind it is computed"
            )


CHECKS: dict[str, Callable[[Task], None]] = {
    "builds at all widths, depths and exits": check_builds,
    "slices keep names, and fit": check_names,
    "sliced equals masked": check_masked,
    "gradients reach all that is sent": check_gradients,
    "exits in order, as many as asked": check_exits,
    "samples may leave at exits": check_leaving,
    "nothing runs beyond an exit": check_walk,
    "cost falls with width and depth": check_costs,
    "round trip is bit-identical": check_round_trip,
    "state dict is all there is": check_state,
    "buffers that are not sent stay": check_buffers,
    "nothing is left to chance": check_determinism,
}


SLOW = ("nothing runs beyond an exit", "round trip is bit-identical")
"""Checks that take long, and whose failure would not falsify a run's results."""
WITHOUT_NUMBERS = ("slices keep names, and fit", "cost falls with width and depth")
LARGE = 4_000_000
"""Parameters above which the other checks would take many seconds before each first run."""


def checks_before_a_run(task: Task) -> list[str]:
    """Return the names of the checks that are quick enough for the start of a run."""
    if price_of(task, task.whole, "parameters") > LARGE:  # without a pass, which imports a lot
        return list(WITHOUT_NUMBERS)
    return [name for name in CHECKS if name not in SLOW]


def findings(
    task: Task, place_of: Callable[[BaseException], str | None], chosen: Iterable[str] = CHECKS
) -> Iterator[Finding]:
    """Yield the finding of each check; after a failed build the others are skipped.

    `place_of` returns the line of the network's own code that raised an error.
    """
    built = True
    for name in chosen:
        check = CHECKS[name]
        seen = task if check is check_builds else with_short_texts(task)
        wrong = _wrong(check, seen, place_of) if built else None
        yield Finding(name, wrong, built)
        built = built and (check is not check_builds or wrong is None)


def failed(found: Sequence[Finding]) -> bool:
    """Return whether a check has failed."""
    return any(each.wrong for each in found)


def _wrong(
    check: Callable[[Task], None], task: Task, place_of: Callable[[BaseException], str | None]
) -> str | None:
    try:
        check(task)
    except CheckError as error:
        return str(error)
    except (Exception, SystemExit) as error:  # the network's own code may raise anything
        notes = "".join(f"{note}: " for note in getattr(error, "__notes__", ()))
        place = f" ({found})" if (found := place_of(error)) else ""
        return f"{notes}{type(error).__name__}: {' '.join(str(error).split())}{place}"
    return None
