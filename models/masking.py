"""Compares a slice with the full network whose other channels are zero: they should be equal.

Some layers depend on their own width by design: LayerNorm's statistics are over its channels, and
attention is scaled by the size of a head. The comparison leaves these effects out on both sides.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from models.families import SlicedNetwork
from models.slicing import SliceMap, State, Window, extract, slice_map

Network = TypeVar("Network", bound=nn.Module)
NEAR = 1e-6
"""Tolerance of the comparison in double precision, relative to the largest value."""


def randomised(net: Network, seed: int = 0) -> Network:
    """Return the network with random values in all parameters and statistics."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in net.state_dict().items():
            if name.endswith("running_var"):
                tensor.uniform_(0.5, 2, generator=generator)
            elif tensor.is_floating_point() and tensor.ndim == 1:
                tensor.normal_(0.3, 0.7, generator=generator)
    return net


def zeros_outside(state: State, slice_map: SliceMap, *names: str) -> dict[str, Tensor]:
    """Return the full state, with the named tensors set to zero outside the slice's regions."""
    masked = dict(state)
    for name in names:
        kept, shape = np.array(name in slice_map.regions), state[name].shape
        for axis, index in enumerate(slice_map.regions[name].axes if kept else ()):
            of_axis = np.zeros(shape[axis], bool)
            of_axis[index] = True
            kept = np.logical_and(kept, of_axis.reshape(-1, *[1] * (len(shape) - axis - 1)))
        masked[name] = torch.where(torch.from_numpy(kept), state[name], 0)
    return masked


def compare_with_masked(
    full: SlicedNetwork, part: SlicedNetwork, window: Window, inputs: Tensor
) -> str | None:
    """Load the slice from the full network, mask the rest there, and compare their answers.

    Return the first layer that differs, with the change to make, or None if all agree.
    """
    mapping = slice_map(full, part, window, bank_of=lambda name: None)
    part.load_state_dict(extract(full.state_dict(), mapping))
    floating = [name for name, t in full.state_dict().items() if t.is_floating_point()]
    full.load_state_dict(zeros_outside(full.state_dict(), mapping, *floating), assign=True)
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    expected, found = (_Outputs(net.double().eval(), inputs) for net in (full, part))
    if all(_same(*pair) for pair in zip(found.logits, expected.logits, strict=True)):
        return None
    return _differs(part, mapping, expected, found)


class _WidthBlind(TorchFunctionMode):
    """Makes layers that depend on their own width act alike at every width."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        named = dict(kwargs or {})
        if function is F.scaled_dot_product_attention:
            return function(*args, **{**named, "scale": 1.0})
        if function in (F.layer_norm, F.rms_norm, F.group_norm):
            x, _, *rest = args
            weight, bias = [*rest, None, None][:2]
            weight = named.get("weight", weight)
            bias = named.get("bias", bias if function is not F.rms_norm else None)
            shape = [1, -1, *[1] * (x.ndim - 2)] if function is F.group_norm else [-1]
            scaled = x if weight is None else x * weight.reshape(shape)
            return scaled if bias is None else scaled + bias.reshape(shape)
        return function(*args, **named)


class _Outputs:
    """A network's logits, and two sums over the output of each layer with weights.

    Sums do not depend on the place of channels, and zero channels do not change them.
    """

    def __init__(self, net: SlicedNetwork, inputs: Tensor) -> None:
        self.sums: dict[tuple[str, int], Tensor] = {}
        hooks = [
            module.register_forward_hook(
                lambda _, given, answer, name=name: self._note(name, answer)
            )
            for name, module in net.named_modules()
            if any(True for _ in module.parameters(recurse=False))
        ]
        with torch.no_grad(), _WidthBlind():
            self.logits = [logits.clone() for logits in net(inputs)]
        for hook in hooks:
            hook.remove()

    def _note(self, name: str, answer: object) -> None:
        if isinstance(answer, Tensor) and answer.is_floating_point():
            call = sum(known == name for known, _ in self.sums)
            self.sums[name, call] = torch.stack([answer.sum(), answer.square().sum()])


def _differs(part: nn.Module, mapping: SliceMap, expected: _Outputs, found: _Outputs) -> str:
    """Describe the first layer of a slice that differs, and the change to make."""
    pairs = ((key, expected.sums.get(key), own) for key, own in found.sums.items())
    wrong = next((key for key, other, own in pairs if other is None or not _same(own, other)), None)
    said = "a slice answers otherwise than the full network whose other channels are zero: "
    if wrong is None:
        return (
            f"{said}all layers answer alike, so it is what is done with their answers: nothing may "
            "depend on the number of channels, such as a mean over them"
        )
    name, region = wrong[0], mapping.regions.get(f"{wrong[0]}.weight")
    if region is not None and len(region.shape) > 1 and region.shape[1] < region.full[1]:
        return (
            f"{said}{name} is the first layer that differs. It reads {region.shape[1]} of "
            f"{region.full[1]} inputs: if these are joined, or flattened images, say of which "
            f'parts they are, with declare_parts(self.{name}, "weight", axis=1, sizes=(..., ...)); '
            "else what comes before it depends on the number of channels, and must not"
        )
    kind = type(part.get_submodule(name)).__name__
    return (
        f"{said}{name} ({kind}) is the first layer that differs: what it does, or reads, must not "
        "depend on the number of channels"
    )


def _same(one: Tensor, other: Tensor) -> bool:
    scale = max(1.0, float(other.abs().max()))
    return bool((one - other).abs().max() <= NEAR * scale)
