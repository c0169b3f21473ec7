"""Small networks and helpers that the tests share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models import Slice, SliceMap, declare_parts


class Dense(nn.Module):
    """A biased network whose second layer reads two concatenated feature maps."""

    def __init__(self, slice: Slice = Slice()) -> None:  # noqa: B008  (frozen)
        super().__init__()
        first, second = slice.channels(4), slice.channels(6)
        self.one = nn.Conv2d(3, first, 3, padding=1)
        self.two = nn.Conv2d(first, second, 3, padding=1)
        self.join = nn.Conv2d(first + second, slice.channels(8), 1)
        declare_parts(self.join, "weight", 1, (first, second))
        self.fc = nn.Linear(slice.channels(8), 5)

    def forward(self, x: Tensor) -> Tensor:
        one = F.relu(self.one(x))
        two = F.relu(self.two(one))
        joined = F.relu(self.join(torch.cat((one, two), 1)))
        logits: Tensor = self.fc(joined.mean((2, 3)))
        return logits


class Attention(nn.Module):
    """Fused q, k, v with heads that shrink: one axis made of 3 x heads parts."""

    heads = 2

    def __init__(self, slice: Slice = Slice()) -> None:  # noqa: B008  (frozen)
        super().__init__()
        self.size = slice.channels(4)
        inner = self.heads * self.size
        self.embed = nn.Linear(3, inner)
        self.qkv = nn.Linear(inner, 3 * inner)
        self.out = nn.Linear(inner, 5)
        heads = (self.size,) * self.heads
        for layer, axis, sizes in (
            (self.embed, 0, heads),
            (self.qkv, 0, heads * 3),
            (self.qkv, 1, heads),
            (self.out, 1, heads),
        ):
            declare_parts(layer, "weight", axis, sizes)
            if axis == 0:
                declare_parts(layer, "bias", axis, sizes)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, self.size)).transpose(-2, -3)
            for part in self.qkv(self.embed(x)).chunk(3, -1)
        )
        mixed = (q @ k.transpose(-1, -2)).tanh() @ v  # no softmax: absent channels add nothing
        logits: Tensor = self.out(mixed.transpose(-2, -3).flatten(-2))
        return logits


def zeros_outside(state: dict[str, Tensor], slice_map: SliceMap, *names: str) -> dict[str, Tensor]:
    """The full state with the named tensors' entries outside the slice's regions set to zero."""
    masked = dict(state)
    for name in names:
        kept = torch.zeros_like(state[name], dtype=torch.bool).numpy()
        if name in slice_map.regions:
            starts, length = slice_map.regions[name].runs
            for start in starts:
                kept.reshape(-1)[start : start + length] = True
        masked[name] = torch.where(torch.from_numpy(kept), state[name], 0)
    return masked


def randomised(net: nn.Module, seed: int = 0) -> nn.Module:
    """The network with no parameter at a special value: norms too are random."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in net.state_dict().items():
            if name.endswith("running_var"):
                tensor.uniform_(0.5, 2, generator=generator)
            elif tensor.is_floating_point() and tensor.ndim == 1:
                tensor.normal_(0.3, 0.7, generator=generator)
    return net
