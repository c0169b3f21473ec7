"""Perplexity worked out by hand; tests and training of networks that answer every word."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from data.catalog import LANGUAGE
from data.examples import LanguageData, LanguageSplit
from models import SlicedNetwork, Task
from models.slicing import Slice
from tests.support.toy_training import EPOCH
from training.fitting import fit
from training.local_training import plain_loss
from training.perplexity import perplexity, perplexity_of, shown
from training.shared_losses import masked_cross_entropy, present_classes
from training.testing import evaluate, evaluation_batches

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = replace(EPOCH, batch_size=2)


def text(rows: list[list[int]]) -> LanguageData:
    return LanguageData.of(LanguageSplit(np.array(rows, np.int32)), LANGUAGE["wikitext2"])


def drawn(rows: int, tokens: int, words: int) -> LanguageData:
    chance = np.random.default_rng(0)
    return text(chance.integers(words, size=(rows, tokens + 1)).tolist())


class Stubborn(SlicedNetwork):
    """Gives every word the same shares, whatever it sees."""

    def __init__(self, shares: list[float]) -> None:
        super().__init__()
        self.shares = torch.tensor(shares)

    def forward(self, x: Tensor) -> list[Tensor]:
        return [self.shares.log().repeat(x.numel(), 1)]


@pytest.mark.parametrize("words", [7, 1500])
def test_of_a_uniform_model_it_is_the_number_of_words(words: int) -> None:
    (report,) = evaluate(Stubborn([1 / words] * words), drawn(9, 40, words), CPU)
    assert perplexity(report.loss) == pytest.approx(words, rel=1e-4)


def test_of_given_shares_it_is_the_geometric_mean_of_their_inverses() -> None:
    # The labels are 1 0 0 2, of shares 1/4, 1/2, 1/2 and 1/4.
    (report,) = evaluate(Stubborn([0.5, 0.25, 0.25]), text([[0, 1, 0], [2, 0, 2]]), CPU)
    assert perplexity(report.loss) == pytest.approx((4 * 2 * 2 * 4) ** (1 / 4))
    assert report.accuracy == 0.5  # of four words, not of two examples
    assert report.examples == 2


def test_beyond_all_numbers_it_is_infinite() -> None:
    assert perplexity(0.0) == 1
    assert perplexity(1e6) == perplexity(math.inf) == perplexity(math.nan) == math.inf


def test_it_has_a_name_beside_each_accuracy() -> None:
    assert perplexity_of("accuracy") == "perplexity"
    assert perplexity_of("local") == "local_perplexity"
    assert (shown(12.345), shown(None)) == ("12.3", "-")


def test_batches_of_tests_have_no_more_than_256_answers() -> None:
    sizes = [len(labels) for _, labels in evaluation_batches(drawn(9, 64, 5))]
    assert max(sizes) <= 256
    assert sum(sizes) == 9 * 64


def test_words_that_a_client_lacks_get_no_gradient() -> None:
    data = text([[0, 1, 2], [1, 2, 1]])
    present = present_classes(data.labels, 5)
    assert present.tolist() == [False, True, True, False, False]
    logits = torch.randn(4, 5, requires_grad=True)
    ((_, labels),) = data.batches(2)
    masked_cross_entropy([logits], labels, present).backward()
    assert logits.grad is not None
    assert logits.grad.any(0).tolist() == present.tolist()


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_training_counts_examples_and_leaves_a_lone_last_one_out(rows: int) -> None:
    task = Task("transformer-micro", 5, tokens=8)
    report = fit(task.build(Slice()), drawn(rows, 8, 5), plain_loss, CPU, 1, 0)
    assert (report.examples, report.batches) == (rows, 1)
    assert 1 < report.loss < 3
