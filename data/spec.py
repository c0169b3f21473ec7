"""The data that a run trains on, and how it is dealt out to the clients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from data.catalog import CATALOG, DataError, ImageFacts, LanguageFacts, TextFacts

PartitionKind = Literal["iid", "dirichlet", "classes", "sizes", "uneven", "shares"]
PARTITION_KINDS: tuple[PartitionKind, ...] = get_args(PartitionKind)
LocalTestKind = Literal["own", "global"]
DEALT_BY_AMOUNT: tuple[PartitionKind, ...] = ("iid", "sizes", "uneven", "shares")
"""Those that do not ask which class an example is of."""
WHITESPACE = "whitespace"
"""What makes words of a running text, unless another tokenizer is named."""


@dataclass(frozen=True)
class DatasetSpec:
    """A data set and its partition: equal specs give equal clients on every machine."""

    name: str = "digits"
    path: str | None = None
    """Local files: a folder or a file. None takes the bundled or the published data set."""
    clients: int = 10
    partition: PartitionKind = "iid"
    alpha: float = 1.0
    """Concentration of `dirichlet` (classes) and `sizes` (amounts): the smaller, the more skew."""
    classes_per_client: int = 2
    """The number of classes that a client of `classes` sees."""
    examples_per_client: tuple[int, ...] | None = None
    """The fewest and the most examples of a client of `uneven` or `classes`, which of the latter
    has equally many of each of its classes. None deals out all: to clients of `uneven` up to twice
    as many as to others."""
    shares: tuple[float, ...] | None = None
    """How much of the data each client of `shares` has, in the order of their numbers and relative
    to the others."""
    min_examples: int = 1
    """The fewest examples a client may have, all its parts together."""
    validation: float = 0.1
    """Share of a client's examples that it validates on."""
    test: float = 0.1
    """Share of a client's examples that it tests on."""
    local_test: LocalTestKind = "own"
    """What a client tests on: that share of its own examples, or examples of the data set's test
    split, of its classes in their proportions (FedFA)."""
    local_test_examples: int = 200
    """The most that a client draws of the test split."""
    server: float | None = None
    """Share of the training examples that the server keeps, and no client gets; None is what the
    run's method asks for, or else none."""
    seed: int = 0
    max_train: int | None = None
    """Take no more than this many training examples, the server's too; None takes all."""
    max_test: int | None = None
    """Keep no more than this many examples of the global test set; None keeps all."""
    tokenizer: str | None = None
    """Whose tokens texts become: a folder or `tokenizer.json` of a pre-trained model, `hub:NAME`
    of one on Hugging Face, or `package:NAME` of a Python package that holds it. None and `hashed`
    hash words. Of a running text: `whitespace` (None) takes words as they are there and ends lines,
    `basic-english` is torchtext's."""
    max_tokens: int = 128
    """Texts are cut off at this many tokens, those at their two ends included. An example of a
    running text has so many, and the word after each is its label."""
    words: int | None = None
    """The vocabulary of a running text: so many of the words that its training text has most
    often, one of them for all others. None takes all that are published."""

    def __post_init__(self) -> None:
        _check_choice("data set", self.name, tuple(CATALOG))
        _check_choice("partition", self.partition, PARTITION_KINDS)
        if not (self.alpha > 0 and math.isfinite(self.alpha)):
            raise DataError(f"alpha is {self.alpha}: expected a finite number above 0")
        if isinstance(self.facts, LanguageFacts):
            self._check_language(self.facts)
        elif self.words is not None:
            raise DataError(f"words is {self.words}, but {self.name} is no running text")
        elif not 1 <= self.classes_per_client <= self.facts.num_classes:
            raise DataError(
                f"classes_per_client is {self.classes_per_client}: "
                f"expected 1 to {self.facts.num_classes}, the classes of {self.name}"
            )
        _check_choice("local_test", self.local_test, get_args(LocalTestKind))
        self._check_examples_per_client()
        self._check_shares()
        for field in ("clients", "min_examples", "local_test_examples", "max_train", "max_test"):
            number = getattr(self, field)
            if number is not None and number < 1:
                raise DataError(f"{field} is {number}: expected at least 1")
        if self.max_tokens < 3:
            raise DataError(f"max_tokens is {self.max_tokens}: expected at least 3")
        if self.server is not None and not 0 <= self.server < 1:
            raise DataError(f"server is {self.server}: expected 0 or more, and less than 1")
        if self.seed < 0:
            raise DataError(f"seed is {self.seed}: expected 0 or more")
        if not (self.validation >= 0 and self.test >= 0 and self.validation + self.test < 1):
            raise DataError(
                f"validation {self.validation} and test {self.test} are no shares of a client's "
                "examples: expected 0 or more each, and less than 1 together"
            )

    def _check_examples_per_client(self) -> None:
        given = self.examples_per_client
        if given is None:
            return
        if len(given) != 2 or not 1 <= given[0] <= given[1]:
            raise DataError(
                f"examples_per_client is {list(given)}: expected the fewest and the most, "
                "such as [100,250]"
            )
        if self.partition not in ("uneven", "classes"):
            raise DataError(
                f"examples_per_client is {list(given)}, but partition {self.partition} deals out "
                "all examples: choose uneven or classes, or null"
            )

    def _check_shares(self) -> None:
        given = self.shares or ()
        positive = all(0 < share < math.inf for share in given)
        if self.partition == "shares" and (len(given) != self.clients or not positive):
            raise DataError(
                f"shares are {list(given)}: expected a number above 0 for each of {self.clients} "
                "clients"
            )

    @property
    def tests_locally(self) -> bool:
        """Whether clients have something to test on."""
        return self.test > 0 or self.local_test == "global"

    def _check_language(self, facts: LanguageFacts) -> None:
        if self.partition not in DEALT_BY_AMOUNT:
            raise DataError(
                f"partition {self.partition} deals out by class, and the examples of {self.name}, "
                f"a running text, have none; choose one of: {', '.join(DEALT_BY_AMOUNT)}"
            )
        if self.local_test != "own":
            raise DataError(
                f"local_test is {self.local_test}, which goes by classes, and the examples of "
                f"{self.name}, a running text, have none: expected own"
            )
        _check_choice("tokenizer", self.tokenizer or WHITESPACE, tuple(facts.words))
        if self.words is not None and self.words < 2:
            raise DataError(f"words is {self.words}: expected at least 2")

    @property
    def facts(self) -> ImageFacts | TextFacts | LanguageFacts:
        """Return what is known of the data set."""
        return CATALOG[self.name]

    @property
    def num_classes(self) -> int:
        """Return the number of classes: of a running text, the words of its vocabulary."""
        if isinstance(self.facts, LanguageFacts):
            return self.words or self.facts.words[self.tokenizer or WHITESPACE]
        return self.facts.num_classes

    @property
    def holds(self) -> Literal["images", "series", "tokens", "language"]:
        """Return the kind of input that a network reads of it."""
        if isinstance(self.facts, LanguageFacts):
            return "language"
        return "images" if isinstance(self.facts, ImageFacts) else "tokens"

    @property
    def input_shape(self) -> dict[str, int]:
        """Return the size of an example, by the names that `models.Task` has for it."""
        if isinstance(self.facts, ImageFacts):
            return {"in_channels": self.facts.in_channels, "image_size": self.facts.image_size}
        return {"tokens": self.max_tokens}


def _check_choice(what: str, chosen: str, choices: tuple[str, ...]) -> None:
    if chosen not in choices:
        raise DataError(f"unknown {what} {chosen!r}; choose one of: {', '.join(choices)}")
