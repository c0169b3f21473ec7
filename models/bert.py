"""BERT as a sequence classifier, from `transformers`' own modules with their parameter names.

Devlin et al., BERT: Pre-training of Deep Bidirectional Transformers. Tensors are named as in
`transformers.BertModel`, without a prefix (`embeddings...`, `encoder.layer.0...`, `pooler...`);
`classifier` and `exits` are ours. The input is one tensor of token ids [batch, tokens], padded with
0; the attention mask leaves padding out.

A slice keeps all heads, each with the first part of its positions. Embeddings, the residual stream,
the FFN and LayerNorm are cut in as many equal chunks (ScaleFL). Attention is scaled by the slice's
own head size and LayerNorm runs over the positions kept, so a slice is a smaller BERT with parts of
the same weights, not the full one with the rest set to zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from models.families import Features, SlicedNetwork, early_heads, held, register
from models.options import share_left_out, whole_number
from models.slicing import Slice, SliceError, declare_chunks

if TYPE_CHECKING:
    from transformers import BertConfig

PADDING = 0
"""The token that pads a text to the length of its batch."""
ROWS_OF_OTHERS = ("word_embeddings", "position_embeddings", "token_type_embeddings", "classifier")
"""Layers whose rows are not positions of the residual stream: tokens, places, types, classes."""


@dataclass(frozen=True)
class Architecture:
    """The sizes of a BERT."""

    layers: int
    hidden: int
    heads: int
    feed_forward: int


class Head(nn.Module):
    """An exit: pooler (dense and tanh on [CLS]), dropout, and a linear layer."""

    def __init__(self, config: BertConfig, num_classes: int) -> None:
        from transformers.models.bert.modeling_bert import BertPooler

        super().__init__()
        self.pooler = BertPooler(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.dropout(self.pooler(x)))
        return logits


class Encoder(nn.Module):
    """A namespace: gives the layers the prefix `encoder.layer` in their names."""

    layer: nn.ModuleDict


class Bert(SlicedNetwork):
    """Embeddings, encoder layers, and a pooled classifier; a head after each early exit."""

    saved_within = ("bert.",)
    saved_besides = ("cls.", "embeddings.position_ids")  # other heads, counted positions

    def __init__(
        self,
        architecture: Architecture,
        num_classes: int,
        slice: Slice,
        vocabulary: int = 30522,
        positions: int = 512,
        dropout: float = 0.1,
    ) -> None:
        # Imported here: it takes seconds, and only a process that builds a BERT needs it.
        from transformers import BertConfig
        from transformers.models.bert.modeling_bert import BertEmbeddings

        super().__init__()
        self.slice = _checked(slice, architecture)
        dropout = share_left_out("dropout", dropout)
        self.units = architecture.layers
        self.depth = slice.depth(self.units)
        heads = architecture.heads
        self.config = BertConfig(
            vocab_size=whole_number("vocabulary", vocabulary),
            max_position_embeddings=whole_number("positions", positions),
            hidden_size=heads * slice.channels(architecture.hidden // heads),
            intermediate_size=heads * slice.channels(architecture.feed_forward // heads),
            num_attention_heads=heads,
            num_hidden_layers=self.depth,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
            pad_token_id=PADDING,
            attn_implementation="sdpa",
        )
        self.embeddings = BertEmbeddings(self.config)
        self.encoder = Encoder()
        self.encoder.layer = nn.ModuleDict(dict(self._layers()))
        self.exits = early_heads(slice, self.units, lambda _: Head(self.config, num_classes))
        if self.depth == self.units:
            final = Head(self.config, num_classes)
            self.pooler, self.dropout, self.classifier = final.children()
        self.apply(self._initialise)
        declare_chunks(self, heads, ROWS_OF_OTHERS)

    def enter(self, x: Tensor) -> Features:
        """Return the attention mask and the embedded tokens."""
        self._check_tokens(x)
        attended = (x != PADDING)[:, None, None, :]  # [batch, heads, queries, keys]
        # Passed explicitly: transformers' defaults are parts of buffers for the longest text.
        places = torch.arange(x.shape[1], device=x.device)[None]
        embedded = self.embeddings(x, token_type_ids=torch.zeros_like(x), position_ids=places)
        return attended, embedded

    def unit(self, number: int) -> nn.Module | None:
        return held(self.encoder.layer, number - 1)

    def final_head(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.dropout(self.pooler(x)))
        return logits

    def _layers(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield the layers of the slice, with their numbers."""
        from transformers.models.bert.modeling_bert import BertLayer

        for number in range(self.depth):
            if self.slice.blocks is None or number in self.slice.blocks[0]:
                yield str(number), BertLayer(self.config)

    def _check_tokens(self, x: Tensor) -> None:
        positions = self.config.max_position_embeddings
        if x.shape[1] > positions:
            raise ValueError(f"{x.shape[1]} tokens: this BERT reads up to {positions} (positions)")
        # On the CPU only: elsewhere the check would wait for the device, and torch has its own.
        if (
            x.device.type == "cpu"
            and x.numel()
            and (largest := int(x.max())) >= (known := self.config.vocab_size)
        ):
            raise ValueError(
                f"token {largest} is not in this BERT's vocabulary of {known}: "
                "choose the tokenizer of its weights, or set the model's vocabulary"
            )

    def _initialise(self, module: nn.Module) -> None:
        """Draw weights as BERT does, with variance 0.02^2; biases and padding start at zero."""
        weight = getattr(module, "weight", None)
        if weight is None or weight.is_meta or not isinstance(module, nn.Linear | nn.Embedding):
            return
        nn.init.normal_(weight, std=self.config.initializer_range)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
        elif module.padding_idx is not None:
            nn.init.zeros_(weight.data[module.padding_idx])


def _checked(slice: Slice, architecture: Architecture) -> Slice:
    if isinstance(slice.width, tuple) and len(slice.width) != 1:
        raise SliceError(f"width {slice.width}: expected one share, for BERT has one stage")
    if slice.blocks is not None:
        last = architecture.layers - 1
        kept = slice.blocks[0] if len(slice.blocks) == 1 else (-1,)
        if not all(0 <= layer <= last for layer in kept):
            raise SliceError(f"blocks {slice.blocks}: expected one tuple of layers 0 to {last}")
    return slice


for _name, _architecture in {
    "bert": Architecture(12, 768, 12, 3072),
    "bert-mini": Architecture(4, 256, 4, 1024),  # Turc et al., Well-Read Students Learn Better
    "bert-tiny": Architecture(2, 128, 2, 512),
    "minilm": Architecture(6, 384, 12, 1536),  # Wang et al., MiniLM
}.items():
    _layers = _architecture.layers
    register(_name, _layers, reads="tokens", stages=(_layers,), blocks="encoder.layer.{block}.")(
        partial(Bert, _architecture)
    )
