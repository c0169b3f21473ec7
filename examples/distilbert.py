"""DistilBERT (Sanh et al., 2019) as a sequence classifier, of Hugging Face's modules and names.

nestfl run --plugin examples/distilbert.py model=distilbert dataset=sst2 train=bert \\
    strategy=scalefl model.weights=hub:distilbert/distilbert-base-uncased
"""

from torch import Tensor, nn

from models import Slice, SlicedNetwork, declare_parts, register
from models.families import Features

LAYERS, HEADS = 6, 12
UNCUT = ("word_embeddings", "position_embeddings", "classifier", "exits")  # rows are no channels


@register("distilbert", units=LAYERS, reads="tokens")
class DistilBert(SlicedNetwork):
    """A slice keeps the first part of every head; an early exit is a linear layer on [CLS]."""

    saved_within = ("distilbert.",)
    saved_besides = ("vocab_",)  # the head of its pre-training
    drawn_anew = ("pre_classifier.",)

    def __init__(
        self, num_classes: int, slice: Slice, size: int = 64, vocabulary: int = 30522
    ) -> None:
        from transformers import DistilBertConfig  # not above: it takes seconds
        from transformers.models.distilbert.modeling_distilbert import Embeddings, TransformerBlock

        super().__init__()
        self.depth = slice.exits[-1] if slice.exits else LAYERS
        width, inner = HEADS * slice.channels(size), HEADS * slice.channels(4 * size)
        self.config = DistilBertConfig(
            vocab_size=vocabulary, n_heads=HEADS, dim=width, hidden_dim=inner
        )
        self.config._attn_implementation = "sdpa"
        self.embeddings = Embeddings(self.config)
        layers = nn.ModuleList(TransformerBlock(self.config) for _ in range(self.depth))
        self.transformer = nn.ModuleDict({"layer": layers})
        early = [unit for unit in slice.exits or () if unit < LAYERS]
        self.exits = nn.ModuleDict({str(unit): nn.Linear(width, num_classes) for unit in early})
        if self.depth == LAYERS:
            self.pre_classifier = nn.Linear(width, width)
            self.dropout = nn.Dropout(self.config.seq_classif_dropout)
            self.classifier = nn.Linear(width, num_classes)
        for name, tensor in self.named_parameters():
            layer, _, own = name.rpartition(".")
            for axis, length in enumerate(tensor.shape):
                if axis > 0 or not any(part in UNCUT for part in layer.split(".")):
                    parts = (length // HEADS,) * HEADS
                    declare_parts(self.get_submodule(layer), own, axis, parts)

    def enter(self, x: Tensor) -> Features:
        return (x != 0)[:, None, None, :], self.embeddings(x)  # what is attended to, and what it is

    def unit(self, number: int) -> nn.Module:
        return self.get_submodule(f"transformer.layer.{number - 1}")

    def run_unit(self, number: int, features: Features) -> Features:
        attended, x = features
        return attended, self.unit(number)(x, attended)

    def run_head(self, number: int, features: Features) -> Tensor:
        x: Tensor = features[-1][:, 0]  # [CLS]
        if number == LAYERS:
            x = self.dropout(self.pre_classifier(x).relu())
        head = self.classifier if number == LAYERS else self.exits[str(number)]
        logits: Tensor = head(x)
        return logits
