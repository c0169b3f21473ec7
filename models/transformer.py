"""A Transformer language model: FedFA's for WikiText-2 (Park and Joe-Wong, Tables 4, 5).

Word and position embeddings, then two stages of layers, and a linear classifier over all words. The
first stage has two layers, the second up to five; FedFA's clients choose the second's hidden width.
Each layer is causal attention and a feed-forward network, each beside the identity, with LayerNorm
before it and at the end (pre-LN). Table 4 leaves two points open: there are four heads, and
positions have learnt embeddings.

A width for each stage cuts the hidden layers of its feed-forward networks, and the residual stream
stays whole, as in FedFA. A single width cuts that as well, as in `models/vit.py`: all heads stay,
each with the first part of its positions, and the residual stream, LayerNorm and each of the fused
q, k and v are cut in as many equal chunks. Words and positions are never cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.candidates import Candidates
from models.families import Features, SlicedNetwork, early_heads, register
from models.layers import StepKind, give_step, stepped
from models.options import share_left_out, whole_number
from models.slicing import Slice, check_stages
from models.vit import SelfAttention, Sizes


@dataclass(frozen=True)
class Architecture:
    """The sizes of a Transformer."""

    layers: tuple[int, ...]
    """Number of layers in each stage."""
    hidden: tuple[int, ...]
    """Width of the feed-forward networks in each stage."""
    dim: int
    heads: int

    def sizes(self, slice: Slice, stage: int) -> Sizes:
        """Return the sizes of a slice's layers in a stage."""
        head = self.dim // self.heads
        if not isinstance(slice.width, tuple):
            head = slice.channels(head)
        hidden = slice.channels(self.hidden[stage], stage)
        return Sizes(self.heads, head, hidden, chunks=(head,) * self.heads)


class CausalAttention(SelfAttention):
    """Attention of each token to itself and to earlier tokens."""

    causal = True


class Layer(nn.Module):
    """Attention and a feed-forward network, each beside the identity; steps as in NeFL."""

    attention_step: Tensor | None
    feed_forward_step: Tensor | None

    def __init__(self, sizes: Sizes, dropout: float, steps: StepKind) -> None:
        super().__init__()
        self.norm1 = sizes.norm()
        self.attention = CausalAttention(sizes, dropout)
        self.norm2 = sizes.norm()
        self.linear1 = sizes.reads(nn.Linear(sizes.dim, sizes.mlp))
        self.linear2 = sizes.gives(nn.Linear(sizes.mlp, sizes.dim))
        self.dropout = nn.Dropout(dropout)
        give_step(self, "attention_step", steps)
        give_step(self, "feed_forward_step", steps)

    def forward(self, x: Tensor) -> Tensor:
        attended = self.dropout(self.attention(self.norm1(x)))
        x = x + stepped(attended, self.attention_step)
        hidden = self.dropout(F.gelu(self.linear1(self.norm2(x))))
        return x + stepped(self.dropout(self.linear2(hidden)), self.feed_forward_step)


class Head(nn.Module):
    """An exit: LayerNorm and a linear layer, for each word."""

    def __init__(self, sizes: Sizes, words: int) -> None:
        super().__init__()
        self.norm = sizes.norm()
        self.classifier = sizes.reads(nn.Linear(sizes.dim, words))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.norm(x)).flatten(0, 1)
        return logits


class Transformer(SlicedNetwork):
    """Embeddings, layers, and a classifier of each word's successor; heads at early exits."""

    def __init__(
        self,
        architecture: Architecture,
        num_classes: int,
        slice: Slice,
        positions: int = 64,
        dropout: float = 0.0,
        steps: StepKind = "none",
    ) -> None:
        super().__init__()
        check_stages(slice, architecture.layers)
        dropout = share_left_out("dropout", dropout)
        self.positions = whole_number("positions", positions)
        self.units = sum(architecture.layers)
        self.depth = slice.depth(self.units)
        sizes = architecture.sizes(slice, 0)
        self.words = _embedding(num_classes, sizes)
        self.places = _embedding(self.positions, sizes)
        self.dropout = nn.Dropout(dropout)
        unit, self.names = 0, dict[int, str]()
        for stage, layers in enumerate(architecture.layers):
            kept = range(layers) if slice.blocks is None else slice.blocks[stage]
            held = nn.ModuleDict()
            for layer in range(layers):
                unit += 1
                if layer in kept and unit <= self.depth:
                    held[str(layer)] = Layer(architecture.sizes(slice, stage), dropout, steps)
                    self.names[unit] = f"layer{stage + 1}.{layer}"
            self.add_module(f"layer{stage + 1}", held)
        self.exits = early_heads(slice, self.units, lambda _: Head(sizes, num_classes))
        if self.depth == self.units:
            self.head = Head(sizes, num_classes)

    def enter(self, x: Tensor) -> Features:
        if x.shape[1] > self.positions:
            raise ValueError(
                f"{x.shape[1]} tokens: this Transformer reads up to {self.positions} (positions)"
            )
        places = torch.arange(x.shape[1], device=x.device)
        return (self.dropout(self.words(x) + self.places(places)),)

    def unit(self, number: int) -> nn.Module | None:
        return self.get_submodule(self.names[number]) if number in self.names else None

    def final_head(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x)
        return logits


def _embedding(rows: int, sizes: Sizes) -> nn.Embedding:
    """Return an embedding with values small enough not to drown the layers' outputs."""
    embedding = nn.Embedding(rows, sizes.dim)
    nn.init.normal_(embedding.weight, std=0.02)
    return sizes.reads(embedding)


for _name, _architecture, _candidates in (
    (
        "transformer",
        Architecture(layers=(2, 5), hidden=(64, 88), dim=64, heads=4),
        Candidates.of_channels(blocks=((2,), (2, 3, 4, 5)), channels=((64,), (64, 72, 80, 88))),
    ),
    ("transformer-micro", Architecture(layers=(1, 2), hidden=(32, 32), dim=32, heads=4), None),
):
    register(
        _name,
        sum(_architecture.layers),
        reads="language",
        stages=_architecture.layers,
        candidates=_candidates,
    )(partial(Transformer, _architecture))
