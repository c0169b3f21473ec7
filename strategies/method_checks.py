"""Checks a user's own method: the state that its server step returns, and unsaved attributes."""

from __future__ import annotations

import dis
import io
import logging
import pickle
import zlib
from collections.abc import Iterator, Mapping
from types import FunctionType

import torch
from torch import Tensor

import plugins
from models import State
from strategies.federation import FederationError
from strategies.method import Method

Form = Mapping[str, tuple[torch.Size, torch.dtype]]
"""The shape and type of each tensor of a state."""


def form_of(state: State) -> Form:
    """Return the form of a state."""
    return {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}


def require_state(state: object, form: Form, source: str) -> State:
    """Return the state from `source`, checked: it must have this form, and finite values only.

    A checkpoint with another form could not be resumed. NaN and infinity would spread to all
    clients.
    """
    if not isinstance(state, Mapping):
        raise FederationError(
            f"{source} returned {type(state).__name__}: expected the next global state, tensors "
            "by their names"
        )
    if lost := [name for name in form if name not in state]:
        raise FederationError(
            f"{source} returned no {_named(lost)}: expected all tensors of the state before"
        )
    if new := [str(name) for name in state if name not in form]:
        raise FederationError(
            f"{source} returned {_named(new)}, which the state before has not: what is no tensor "
            "of the network is an attribute of the method, kept by its state_dict"
        )
    for name, tensor in state.items():
        _require_tensor(name, tensor, form, source)
    return dict(state)


def _require_tensor(name: str, tensor: object, form: Form, source: str) -> None:
    shape, dtype = form[name]
    if not isinstance(tensor, Tensor):
        raise FederationError(
            f"{source} returned {name} as {type(tensor).__name__}: expected a tensor"
        )
    if (tensor.shape, tensor.dtype) != (shape, dtype):
        raise FederationError(
            f"{source} returned {name} as {_form(tensor.shape, tensor.dtype)}: expected "
            f"{_form(shape, dtype)}"
        )
    if not (finite := torch.isfinite(tensor)).all():
        raise FederationError(
            f"{source} returned {name} with {int((~finite).sum())} of {tensor.numel()} values that "
            "are NaN or infinite: expected finite ones"
        )


def _named(names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{more}"


def _form(shape: torch.Size, dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"


log = logging.getLogger("flwr")  # the logger that `flwr log` shows


class Unsaved:
    """Warns of attributes of a user's method that change between rounds and are not in its state.

    Each attribute is named once.
    """

    def __init__(self, method: Method) -> None:
        self._method = method
        self._names = sorted({name for kind in _own_classes(method) for name in _names(kind)})
        self._seen: dict[str, bytes | None] | None = None
        self._told = set[str]()

    def look(self) -> None:
        """Warn of attributes that have changed since the last look and are not in the state."""
        if not self._names:
            return
        before, self._seen = self._seen, {n: self._print_of(n).value for n in self._names}
        if before is None:
            return
        for name in self._names:
            if before[name] != self._seen[name] and name not in self._told:
                self._told.add(name)
                if not self._is_kept(name):
                    log.warning(
                        "strategy %s: its attribute %s has changed in round %d, and is not in its "
                        "state: a resumed run would go on without; return it in state_dict, and "
                        "take it back in load_state_dict (docs/your-network.md)",
                        self._method.settings.name,
                        name,
                        self._method.round,
                    )

    def _print_of(self, name: str) -> _Fingerprint:
        return _Fingerprint(getattr(self._method, name, None), self._method)

    def _is_kept(self, name: str) -> bool:
        """Return whether the method's state holds an attribute, under its name or by its value."""
        method = self._method
        if not _is_loaded(method):
            return False
        usual = Method.state_dict(method)
        kept = {key: tensor for key, tensor in method.state_dict().items() if key not in usual}
        if name.strip("_") in {part for key in kept for part in key.split(".")}:
            return True
        value = getattr(method, name)
        if isinstance(value, int | float):
            return any(tensor.numel() == 1 and tensor.item() == value for tensor in kept.values())
        tensors = self._print_of(name).tensors
        return bool(tensors) and tensors <= {_digest(tensor) for tensor in kept.values()}


class _Fingerprint(pickle.Pickler):
    """A fingerprint of a value: its pickled bytes (`value`), and the digests of its tensors.

    `value` is None where the object cannot be pickled.
    """

    def __init__(self, value: object, method: Method) -> None:
        written = io.BytesIO()
        super().__init__(written, protocol=5)
        self.fast = True  # without memo: equal objects give equal bytes
        self._method = method
        self.tensors = set[tuple[object, ...]]()
        self.value: bytes | None = None
        try:
            self.dump(value)
            self.value = written.getvalue()
        except Exception:  # such as a lambda, or a cycle: no change can be seen
            self.tensors.clear()

    def persistent_id(self, value: object) -> object:
        """Return a placeholder for a tensor (its digest) and for the method itself."""
        if isinstance(value, Tensor):
            digest = _digest(value)
            self.tensors.add(digest)
            return digest
        return "method" if value is self._method else None


def _digest(tensor: Tensor) -> tuple[object, ...]:
    """Return a digest of a tensor's value, shape and type."""
    plain = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return str(tensor.dtype), tuple(tensor.shape), zlib.crc32(plain.numpy().data)


def _own_classes(method: Method) -> Iterator[type]:
    """Yield the classes of a method that do not come from nestfl, Flower or Python."""
    for kind in type(method).__mro__:
        package = kind.__module__.partition(".")[0]
        if package not in ("abc", "builtins", "flwr", "typing") and not plugins.is_ours(kind):
            yield kind


def _names(kind: type) -> Iterator[str]:
    """Yield the names of a class's variables and of the attributes that its functions set."""
    for name, value in vars(kind).items():
        if isinstance(value, FunctionType):
            steps = dis.get_instructions(value)
            yield from (step.argval for step in steps if step.opname == "STORE_ATTR")
        elif not name.startswith("__") and not callable(value) and not hasattr(value, "__get__"):
            yield name


def _is_loaded(method: Method) -> bool:
    """Return whether a user's class loads the state, if a user's class makes it."""
    made, taken = (
        next(kind for kind in type(method).__mro__ if name in vars(kind))
        for name in ("state_dict", "load_state_dict")
    )
    return plugins.is_ours(made) or not plugins.is_ours(taken)
