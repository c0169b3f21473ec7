"""Check that a network can be sliced: the properties that the rest of nestfl relies on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle, islice

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.families import SlicedNetwork
from models.frozen import freeze
from models.loading import network_of, network_to_load, unsaved_buffers
from models.masking import compare_with_masked, randomised
from models.slicing import (
    Slice,
    SliceError,
    SliceMap,
    Window,
    WindowKind,
    extract,
    is_running_statistic,
    slice_map,
)
from models.task import Task
from strategies.aggregation.nested_mean import NestedMean
from strategies.aggregation.update import Update
from strategies.levels.cost import cost, macs_by_exit, price_of

BATCH = 4
WIDTHS = (0.25, 0.5, 0.75, 1.0)
HALF = 0.5
"""Width for properties that do not depend on it: a narrow network is faster."""
SHORT = 16
"""Tokens of texts for properties that do not depend on their length."""
SOME_TOKENS = 20
"""Token ids that any vocabulary has."""
HINTS = {
    "is not in the full network": "give a layer the name that it has in the full network, whatever "
    "the slice lacks",
    "does not fit": "ask slice.channels(FULL) for every number of channels",
    "parts": "call declare_parts in the full network and in slices alike, with the sizes of each",
}
"""The change to make, by the complaint of a slice map."""


class CheckError(ValueError):
    """A property that a network lacks, and the change to make."""


def all_exits(task: Task, last: int | None = None) -> Slice:
    """Return the slice of full width with an exit behind each unit, up to the last."""
    return Slice(exits=tuple(range(1, (last or task.units) + 1)))


def narrow(task: Task) -> Slice:
    """Return the slice of half the width with all exits, for properties that hold at any width."""
    return replace(all_exits(task), width=HALF)


def some_slices(task: Task) -> list[Slice]:
    """Return slices of all widths and of some depths: one unit, half of them, and all."""
    lasts = some_units(task)
    return [replace(all_exits(task, last), width=width) for last in lasts for width in WIDTHS]


def with_short_texts(task: Task) -> Task:
    """Return the task with texts of a few tokens; other tasks stay the same."""
    return replace(task, tokens=min(task.tokens, SHORT))


def some_units(task: Task) -> list[int]:
    """Return the first unit, one in the middle, and the last."""
    return sorted({1, (task.units + 1) // 2, task.units})


def example(task: Task, batch: int = BATCH) -> Tensor:
    """Return a batch of random inputs, the same at each call."""
    form, generator = task.input(batch), torch.Generator().manual_seed(0)
    if form.is_floating_point():
        return torch.randn(form.shape, generator=generator)
    known = task.num_classes if task.tells_words else SOME_TOKENS
    return torch.randint(1, known, form.shape, generator=generator)


def check_builds(task: Task) -> None:
    """Check that the network builds in all widths, depths and exits, and runs."""
    for held in (Slice(), *some_slices(task), *(Slice(exits=(n,)) for n in _units(task))):
        with _about(held):
            task.build(held, "meta")
    for held in (Slice(), replace(all_exits(task), width=WIDTHS[0])):
        with _about(held):
            logits = network_to_load(task, held).eval()(example(task))
            _check_logits(task, logits, len(held.exits or (0,)))


def check_names(task: Task) -> None:
    """Check that every tensor of every slice is in the full network."""
    full = task.build(all_exits(task), "meta")
    for held in some_slices(task):
        _mapped(full, task.build(held, "meta"), held)


def check_masked(task: Task) -> None:
    """Check that slices equal the full network with the other channels at zero, for two windows."""
    inputs, state = example(task), randomised(network_to_load(task, all_exits(task))).state_dict()
    for width, window in ((0.5, Window()), (0.25, Window("rolling", seed=3))):
        held = replace(all_exits(task), width=width)
        full, part = network_of(task, all_exits(task), state), network_to_load(task, held)
        _mapped(full, part, held)
        if (differs := compare_with_masked(full, part, window, inputs)) is not None:
            raise CheckError(f"width {width}, window {window.kind}: {differs}")


def check_gradients(task: Task) -> None:
    """Check that every parameter of a slice gets a gradient from its exits."""
    alone = [Slice(HALF, exits=(unit,)) for unit in some_units(task)]
    for held in (all_exits(task), Slice(HALF), *alone):
        net = network_to_load(task, held).train()
        if unused := without_gradient(net, example(task)):
            raise CheckError(
                f"{_shown(held)}: {_listed(unused)} get no gradient: build only what the exits "
                "that are held read, or do not make it a parameter"
            )


def check_exits(task: Task) -> None:
    """Check that all exits together answer as each exit does alone."""
    inputs, together = example(task), network_to_load(task, narrow(task)).eval()
    heads, early = list(together.exits), [str(unit) for unit in _units(task)[:-1]]
    if heads != early:
        raise CheckError(
            f"self.exits has the heads {heads}: expected {early}, an nn.ModuleDict with the head "
            "of each early exit under its unit's number, in order (the last unit's is the "
            "network's own)"
        )
    with torch.no_grad():
        answers = together(inputs)
        _check_logits(task, answers, task.units)
        for unit in _units(task):
            held = Slice(HALF, exits=(unit,))
            where = _mapped(together, task.build(held, "meta"), held)
            alone = network_of(task, held, extract(together.state_dict(), where)).eval()
            _check_order(unit, alone(inputs)[-1], answers)


def check_leaving(task: Task) -> None:
    """Check that samples may leave at each exit without a change in the others' answers."""
    net = freeze(network_to_load(task, narrow(task)), [example(task)])
    check_walk_of_those_kept(net, example(task))


def check_buffers(task: Task) -> None:
    """Check that training does not change tensors outside the state dict: they are not sent."""
    net = network_to_load(task, Slice(HALF)).train()
    before = {name: tensor.detach().clone() for name, tensor in _unsaved(net).items()}
    without_gradient(net, example(task))
    after = _unsaved(net)
    moved = [n for n in after if n not in before or not torch.equal(after[n], before[n])]
    if moved:
        raise CheckError(
            f"{_listed(moved)} changes in training, and is in no state dict, so that nobody else "
            "sees it: make it a buffer (register_buffer), or compute it anew"
        )


def check_state(task: Task) -> None:
    """Check that a network with the same state answers alike, and that no tensor has two names."""
    for held in (narrow(task), Slice(HALF)):
        net = network_to_load(task, held).eval()
        names: dict[int, str] = {}
        for name, tensor in net.state_dict(keep_vars=True).items():
            if (first := names.setdefault(id(tensor), name)) != name:
                raise CheckError(
                    f"{first} and {name} are one tensor, which would be sent and averaged twice: "
                    "use the one module in both places without registering it again"
                )
        state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        with torch.no_grad():
            loaded = network_of(task, held, state).eval()(example(task))
            if not all(map(torch.equal, loaded, net(example(task)))):
                raise CheckError(
                    f"{_shown(held)}: a network with the same state dict answers otherwise: make "
                    "whatever else differs a parameter or a buffer"
                )


def check_determinism(task: Task) -> None:
    """Check that two builds, and two answers to one input, are equal."""
    first, second = (network_to_load(task, Slice(HALF)).eval() for _ in range(2))
    for name, tensor in first.state_dict().items():
        if not torch.equal(tensor, second.state_dict()[name]):
            raise CheckError(f"{name} differs from one to the next: draw it with torch alone")
    with torch.no_grad():
        if not all(map(torch.equal, first(example(task)), first(example(task)))):
            raise CheckError("the same input has two answers: draw nothing but in training")


def _mapped(full: SlicedNetwork, part: SlicedNetwork, held: Slice) -> SliceMap:
    """Return the map of a slice in a larger one, or raise with the change to make."""
    try:
        return slice_map(full, part, bank_of=lambda name: None)
    except SliceError as error:
        hint = next((told for said, told in HINTS.items() if said in str(error)), "see its docs")
        raise CheckError(f"{_shown(held)}: {error}: {hint}") from error


def without_gradient(net: SlicedNetwork, inputs: Tensor) -> list[str]:
    """Train on all exits at once, and return the parameters without a gradient."""
    losses = []
    for logits in net(inputs):
        labels = torch.arange(len(logits), device=logits.device) % logits.shape[1]
        losses.append(F.cross_entropy(logits, labels))
    torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
    trained = ((name, each) for name, each in net.named_parameters() if each.requires_grad)
    return [name for name, parameter in trained if parameter.grad is None]


def check_walk_of_those_kept(net: SlicedNetwork, inputs: Tensor) -> None:
    """Check that logits after a mask at each exit equal the kept samples' rows of a whole walk."""
    net.eval()
    with torch.no_grad():
        whole, walk = net(inputs), net.walk(inputs)
        left, logits = torch.arange(len(inputs)), next(walk)
        for number, answers in enumerate(whole, 1):
            rows = answers.unflatten(0, (len(inputs), -1))[left].flatten(0, 1)
            if logits.shape != rows.shape or not _close(logits, rows):
                raise CheckError(
                    f"at exit {number} those who stay are answered otherwise than in a whole walk: "
                    "in walk, take `kept = yield logits` and go on with `going_on(x, kept)`"
                )
            kept = torch.arange(len(left)) != (len(left) // 2 or -1)  # one sample stays to the end
            if number < len(whole):
                left, logits = left[kept], walk.send(kept)


def _check_logits(task: Task, logits: Sequence[Tensor], exits: int) -> None:
    shape = (BATCH * task.answers, task.num_classes)
    found = [tuple(each.shape) for each in logits]
    if found != [shape] * exits:
        raise CheckError(
            f"{len(found)} answers of shapes {found}: expected {exits}, one of each exit held, of "
            f"shape {shape}: yield the logits of every exit of slice.exits, and those alone"
        )


def _check_order(unit: int, alone: Tensor, answers: Sequence[Tensor]) -> None:
    if _close(alone, answers[unit - 1]):
        return
    same = [place for place, each in enumerate(answers, 1) if _close(alone, each)]
    if same:
        raise CheckError(
            f"the exit behind unit {unit} is answer {same[0]} of {len(answers)}: yield the logits "
            "in the order of the units"
        )
    raise CheckError(
        f"the exit behind unit {unit} answers otherwise alone than among all exits: what it reads "
        "must not depend on which other exits are held"
    )


def _unsaved(net: nn.Module) -> dict[str, Tensor]:
    """Return tensors outside the state dict: buffers that are not persistent, plain attributes."""
    plain = {
        f"{prefix}.{name}".removeprefix("."): value
        for prefix, module in net.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, Tensor)
    }
    return unsaved_buffers(net) | plain


def _units(task: Task) -> list[int]:
    return list(range(1, task.units + 1))


def _close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-3, atol=1e-4)


@contextmanager
def _about(held: Slice) -> Iterator[None]:
    """Add the slice to an error of a constructor."""
    try:
        yield
    except Exception as error:
        error.add_note(_shown(held))
        raise


def _shown(held: Slice) -> str:
    return f"Slice(width={held.width}, exits={held.exits})"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


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
