"""Vision transformers with torchvision's names, so that its pre-trained weights load.

Dosovitskiy et al., An Image is Worth 16x16 Words. Torchvision itself is not needed. Images of
another size than the network's are resized. Blocks that a slice does not keep are absent: not
built, not computed, not sent.

A width cuts the embedding and the hidden layer of the MLPs, never pixels, positions or classes.
With `heads=narrow` all heads stay, each with the first part of its positions, and the residual
stream, LayerNorm and each of the fused q, k and v are cut in as many equal chunks, as in
`models/bert.py`. With `heads=fewer` the first heads stay whole. Either is a smaller ViT with parts
of the same weights, not the full one with the rest set to zero: LayerNorm runs over the positions
kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.families import Features, SlicedNetwork, early_heads, held, register
from models.layers import StepKind, give_step, stepped
from models.options import share_left_out, whole_number
from models.slicing import Slice, SliceError, check_stages, declare_parts

HeadCut = Literal["narrow", "fewer"]
Layer = TypeVar("Layer", bound=nn.Module)
EPSILON = 1e-6
"""LayerNorm's epsilon in torchvision's ViTs."""


@dataclass(frozen=True)
class Architecture:
    """The sizes of a ViT."""

    image_size: int
    patch: int
    layers: int
    dim: int
    heads: int
    mlp: int

    @property
    def tokens(self) -> int:
        """The number of patches, plus one for the class token."""
        return (self.image_size // self.patch) ** 2 + 1

    def reading(self, image_size: int | None, patch: int | None) -> Architecture:
        """Return this architecture for images or patches of another size, where one is given."""
        size = self.image_size if image_size is None else whole_number("image_size", image_size)
        patch = self.patch if patch is None else whole_number("patch", patch)
        if size % patch:
            raise ValueError(f"image_size is {size}: expected a multiple of patch, {patch}")
        return replace(self, image_size=size, patch=patch)


@dataclass(frozen=True)
class Sizes:
    """The sizes of a slice: its heads, the positions of each, and the MLPs' hidden layer."""

    heads: int
    head: int
    mlp: int
    chunks: tuple[int, ...]
    """The parts of the embedding, each of which is cut on its own."""

    @property
    def dim(self) -> int:
        return self.heads * self.head

    @classmethod
    def of(cls, architecture: Architecture, slice: Slice, cut: HeadCut) -> Sizes:
        heads, head = architecture.heads, architecture.dim // architecture.heads
        mlp = slice.channels(architecture.mlp)
        if cut == "narrow":
            head = slice.channels(head)
            return cls(heads, head, mlp, chunks=(head,) * heads)
        if cut == "fewer":
            heads = slice.channels(heads)
            return cls(heads, head, mlp, chunks=(heads * head,))
        raise ValueError(f"unknown heads {cut!r}; choose from narrow, fewer")

    def reads(self, layer: Layer) -> Layer:
        """Return the layer; declare that its inputs are the embedding's positions."""
        declare_parts(layer, "weight", 1, self.chunks)
        return layer

    def gives(self, layer: Layer) -> Layer:
        """Return the layer; declare that its outputs are the embedding's positions."""
        declare_parts(layer, "weight", 0, self.chunks)
        declare_parts(layer, "bias", 0, self.chunks)
        return layer

    def norm(self) -> nn.LayerNorm:
        return self.gives(nn.LayerNorm(self.dim, eps=EPSILON))


def patches(channels: int, dim: int, size: int) -> nn.Conv2d:
    """Return the linear layer that embeds each patch, as a convolution."""
    conv = nn.Conv2d(channels, dim, size, stride=size)
    nn.init.trunc_normal_(conv.weight, std=math.sqrt(1 / (channels * size**2)))
    nn.init.zeros_(conv.get_parameter("bias"))
    return conv


class SelfAttention(nn.Module):
    """Attention of all tokens to all, with the names of `nn.MultiheadAttention`.

    `nn.MultiheadAttention` does not call its `out_proj`, whose cost would then not be counted.
    """

    causal = False
    """True if a token attends only to itself and earlier tokens (`models/transformer.py`)."""

    def __init__(self, sizes: Sizes, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = sizes.heads, dropout
        self.in_proj_weight = nn.Parameter(torch.empty(3 * sizes.dim, sizes.dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * sizes.dim))
        self.out_proj = sizes.gives(sizes.reads(nn.Linear(sizes.dim, sizes.dim)))
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.out_proj.bias)
        declare_parts(self, "in_proj_weight", 1, sizes.chunks)
        for tensor in ("in_proj_weight", "in_proj_bias"):
            declare_parts(self, tensor, 0, sizes.chunks * 3)

    def forward(self, x: Tensor) -> Tensor:
        fused = F.linear(x, self.in_proj_weight, self.in_proj_bias)
        q, k, v = fused.view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=self.causal)
        y: Tensor = self.out_proj(mixed.transpose(1, 2).flatten(2))
        return y


def perceptron(sizes: Sizes, dropout: float) -> nn.Sequential:
    """Return two linear layers with GELU between (torchvision's names: `0` and `3`)."""
    first = sizes.reads(nn.Linear(sizes.dim, sizes.mlp))
    second = sizes.gives(nn.Linear(sizes.mlp, sizes.dim))
    for linear in (first, second):
        nn.init.xavier_uniform_(linear.weight)
        nn.init.normal_(linear.bias, std=1e-6)
    return nn.Sequential(first, nn.GELU(), nn.Dropout(dropout), second, nn.Dropout(dropout))


class Block(nn.Module):
    """Attention and an MLP, each beside the identity; a step size may multiply each (NeFL)."""

    attention_step: Tensor | None
    mlp_step: Tensor | None

    def __init__(self, sizes: Sizes, dropout: float, steps: StepKind) -> None:
        super().__init__()
        self.ln_1 = sizes.norm()
        self.self_attention = SelfAttention(sizes, dropout)
        self.dropout = nn.Dropout(dropout)
        self.ln_2 = sizes.norm()
        self.mlp = perceptron(sizes, dropout)
        give_step(self, "attention_step", steps)
        give_step(self, "mlp_step", steps)

    def forward(self, x: Tensor) -> Tensor:
        attended = self.dropout(self.self_attention(self.ln_1(x)))
        x = x + stepped(attended, self.attention_step)
        return x + stepped(self.mlp(self.ln_2(x)), self.mlp_step)


class Encoder(nn.Module):
    """The position embedding, and the slice's blocks under their numbers."""

    ln: nn.LayerNorm
    """The final head's norm, where the slice has it."""

    def __init__(self, tokens: int, sizes: Sizes, dropout: float, blocks: dict[int, Block]) -> None:
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.empty(1, tokens, sizes.dim).normal_(std=0.02))
        declare_parts(self, "pos_embedding", 2, sizes.chunks)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleDict({f"encoder_layer_{n}": b for n, b in blocks.items()})

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens plus their position embedding."""
        placed: Tensor = self.dropout(x + self.pos_embedding)
        return placed


class Head(nn.Module):
    """An exit: LayerNorm and a linear layer on the class token."""

    def __init__(self, sizes: Sizes, num_classes: int) -> None:
        super().__init__()
        self.ln = sizes.norm()
        self.head = sizes.reads(nn.Linear(sizes.dim, num_classes))
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.ln(x[:, 0]))
        return logits


class ViT(SlicedNetwork):
    """Patches, encoder blocks, and a linear classifier of the class token; heads at early exits."""

    def __init__(
        self,
        architecture: Architecture,
        num_classes: int,
        in_channels: int,
        slice: Slice,
        image_size: int | None = None,
        patch: int | None = None,
        dropout: float = 0.0,
        steps: StepKind = "none",
        heads: HeadCut = "narrow",
    ) -> None:
        super().__init__()
        check_stages(slice, (architecture.layers,))
        architecture = architecture.reading(image_size, patch)
        sizes = Sizes.of(architecture, slice, heads)
        dropout = share_left_out("dropout", dropout)
        self.image_size, self.units = architecture.image_size, architecture.layers
        self.depth = slice.depth(self.units)
        self.conv_proj = sizes.gives(patches(in_channels, sizes.dim, architecture.patch))
        self.class_token = nn.Parameter(torch.zeros(1, 1, sizes.dim))
        declare_parts(self, "class_token", 2, sizes.chunks)
        kept = range(self.units) if slice.blocks is None else slice.blocks[0]
        blocks = {n: Block(sizes, dropout, steps) for n in range(self.depth) if n in kept}
        if not blocks:
            raise SliceError(f"{slice}: expected a block, for the class token reads through them")
        self.encoder = Encoder(architecture.tokens, sizes, dropout, blocks)
        self.exits = early_heads(slice, self.units, lambda _: Head(sizes, num_classes))
        if self.depth == self.units:
            final = Head(sizes, num_classes)
            self.encoder.ln, self.heads = final.ln, nn.ModuleDict({"head": final.head})

    def enter(self, x: Tensor) -> Features:
        size = (self.image_size, self.image_size)
        if x.shape[2:] != size:
            x = F.interpolate(x, size, mode="bilinear")
        embedded = self.conv_proj(x).flatten(2).transpose(1, 2)
        return (self.encoder(torch.cat((self.class_token.expand(len(x), -1, -1), embedded), 1)),)

    def unit(self, number: int) -> nn.Module | None:
        return held(self.encoder.layers, f"encoder_layer_{number - 1}")

    def final_head(self, x: Tensor) -> Tensor:
        logits: Tensor = self.heads["head"](self.encoder.ln(x[:, 0]))
        return logits


for _name, _architecture in {
    "vit_b_16": Architecture(image_size=224, patch=16, layers=12, dim=768, heads=12, mlp=3072),
    "vit-tiny": Architecture(image_size=32, patch=4, layers=6, dim=192, heads=3, mlp=768),
    "vit-micro": Architecture(image_size=32, patch=4, layers=4, dim=64, heads=4, mlp=256),
}.items():
    _layers = _architecture.layers
    register(_name, _layers, stages=(_layers,), blocks="encoder.layers.encoder_layer_{block}.")(
        partial(ViT, _architecture)
    )
