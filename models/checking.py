"""Checks that a network can be sliced: the properties that the rest of nestfl relies on.

Each check takes a task, and raises `CheckError` that names the change to make.
`strategies/checking.py` has the checks with means or costs, and the list of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.families import SlicedNetwork
from models.frozen import freeze
from models.loading import network_of, network_to_load, unsaved_buffers
from models.masking import compare_with_masked, randomised
from models.slicing import Slice, SliceError, SliceMap, Window, extract, slice_map
from models.task import Task

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
