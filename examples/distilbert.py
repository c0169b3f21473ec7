"""DistilBERT (Sanh et al., 2019) as a sequence classifier, of Hugging Face's modules and names.

nestfl run --plugin examples/distilbert.py model=distilbert dataset=sst2 train=bert \\
    strategy=scalefl model.weights=hub:distilbert/distilbert-base-uncased
"""

from torch import Tensor, nn

from models import Features, Slice, SlicedNetwork, declare_chunks, early_heads, register

LAYERS, HEADS = 6, 12
ROWS_OF_OTHERS = ("word_embeddings", "position_embeddings", "classifier", "exits")


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
        from transformers.models.distilbert.modeling_distilbert import Embeddings, Transformer

        super().__init__()
        self.depth = slice.depth(LAYERS)
        width, inner = (HEADS * slice.channels(full) for full in (size, 4 * size))
        config = DistilBertConfig(
            vocab_size=vocabulary, n_layers=self.depth, n_heads=HEADS, dim=width, hidden_dim=inner
        )
        config._attn_implementation = "sdpa"
        self.embeddings, self.transformer = Embeddings(config), Transformer(config)
        self.exits = early_heads(slice, LAYERS, lambda _: nn.Linear(width, num_classes))
        if self.depth == LAYERS:
            self.pre_classifier, self.dropout = nn.Linear(width, width), nn.Dropout(0.2)
            self.classifier = nn.Linear(width, num_classes)
        declare_chunks(self, HEADS, ROWS_OF_OTHERS)

    def enter(self, x: Tensor) -> Features:
        return (x != 0)[:, None, None, :], self.embeddings(x)  # attention mask, features

    def unit(self, number: int) -> nn.Module:
        return self.get_submodule(f"transformer.layer.{number - 1}")

    def run_head(self, number: int, features: Features) -> Tensor:
        return super().run_head(number, (features[-1][:, 0],))  # [CLS]

    def final_head(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.dropout(self.pre_classifier(x).relu()))
        return logits
