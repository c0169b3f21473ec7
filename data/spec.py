"""The data that a run trains on, and how it is dealt out to the clients."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Literal, get_args

from data.catalog import CATALOG, DataError, ImageFacts, LanguageFacts, SeriesFacts, TextFacts
from data.ranges import CLIENTS, SAMPLES, SEED, SIZE, Range

FOLDER, TABLE = "folder", "table"
OWN_DATA = (FOLDER, TABLE)
"""Data of one's own, in no catalogue: images, and tables. What is known of it is in its spec."""
DATA_SETS = (*CATALOG, *OWN_DATA)
"""All names that a data set can have."""

PartitionKind = Literal[
    "iid", "dirichlet", "classes", "sizes", "uneven", "shares", "column", "folders"
]
NATURAL: tuple[PartitionKind, ...] = ("column", "folders")
"""Partitions that are in the data: a column, or a folder for each client."""
PARTITION_KINDS: tuple[PartitionKind, ...] = tuple(
    kind for kind in get_args(PartitionKind) if kind not in NATURAL
)
"""Partitions that are drawn by chance."""
LocalTestKind = Literal["own", "global"]
DEALT_BY_AMOUNT: tuple[PartitionKind, ...] = ("iid", "sizes", "uneven", "shares")
"""Those that do not ask which class an example is of."""
MOST_PIXELS = 4096
"""Of a side of an image that a run may ask for."""
WHITESPACE = "whitespace"
"""Default splitter of a running text into words."""


@dataclass(frozen=True)
class DatasetSpec:
    """A data set and its partition: equal specs give equal clients on every machine."""

    name: str = "digits"
    path: str | None = None
    """Local files: a folder or a file. None takes the bundled or the published data set."""
    clients: Annotated[int, CLIENTS] = 20
    partition: PartitionKind = "iid"
    alpha: float = 1.0
    """Concentration of `dirichlet` (classes) and `sizes` (amounts): the smaller, the more skew."""
    classes_per_client: Annotated[int, SIZE] = 2
    """The number of classes that a client of `classes` sees."""
    examples_per_client: Annotated[tuple[int, ...] | None, SAMPLES] = None
    """The fewest and the most examples of a client of `uneven` or `classes`, which of the latter
    has equally many of each of its classes. None deals out all: to clients of `uneven` up to twice
    as many as to others."""
    shares: Annotated[tuple[float, ...] | None, Range(0, 10**9, above=True)] = None
    """How much of the data each client of `shares` has, in the order of their numbers and relative
    to the others."""
    min_examples: Annotated[int, SAMPLES] = 1
    """The fewest examples a client may have, all its parts together."""
    validation: float = 0.1
    """Share of a client's examples that it validates on."""
    test: float = 0.1
    """Share of a client's examples that it tests on."""
    local_test: LocalTestKind = "own"
    """What a client tests on: that share of its own examples, or examples of the data set's test
    split, of its classes in their proportions (FedFA)."""
    local_test_examples: Annotated[int, SAMPLES] = 200
    """The most that a client draws of the test split."""
    server: float | None = None
    """Share of the training examples that the server keeps, and no client gets; None is what the
    run's method asks for, or else none."""
    seed: Annotated[int, SEED] = 0
    max_train: Annotated[int | None, SAMPLES] = None
    """Take no more than this many training examples, the server's too; None takes all."""
    max_test: Annotated[int | None, SAMPLES] = None
    """Keep no more than this many examples of the global test set; None keeps all."""
    tokenizer: str | None = None
    """Whose tokens texts become: a folder or `tokenizer.json` of a pre-trained model, `hub:NAME`
    of one on Hugging Face, or `package:NAME` of a Python package that holds it. None and `hashed`
    hash words. Of a running text: `whitespace` (None) takes words as they are there and ends lines,
    `basic-english` is torchtext's."""
    max_tokens: Annotated[int, SIZE] = 128
    """Texts are cut off at this many tokens, those at their two ends included. An example of a
    running text has so many, and the word after each is its label."""
    words: Annotated[int | None, SIZE] = None
    """The vocabulary of a running text: so many of the words that its training text has most
    often, one of them for all others. None takes all that are published."""
    classes: tuple[str, ...] | None = None
    """Of data of one's own, as are all that follow: the names of the classes. None takes those that
    the training files have; a run that has started knows them, and all else that was None."""
    label: str | None = None
    """The column of the classes."""
    column: str | None = None
    """The column, or array, that says whose an example is: the clients of `column`."""
    test_share: float | None = None
    """The share of each class that nobody trains on, where no files are for tests; None: 0.2."""
    test_seed: Annotated[int | None, SEED] = None
    """Draws that share: it is the same whatever the run's seed is. None: 0."""
    test_column: str | None = None
    """The column of a table by which whole groups are held out for the test, such as all of a
    person's rows, rather than a share of each class."""
    image_size: int | None = None
    """Images are scaled until their short side has so many pixels, and cut to a square."""
    channels: int | None = None
    """1 makes images grey, 3 makes them coloured."""
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    """Of each channel, from 0 to 1, over the training images; or of each column of numbers."""
    crop_padding: int | None = None
    """Images are cropped at random from themselves padded by this much; None: an eighth."""
    flip: bool | None = None
    """Whether half of the images are mirrored in training; None: they are."""
    text: str | None = None
    """The column of a table that holds the texts; None is a table of numbers."""
    columns: tuple[str, ...] | None = None
    """The columns of numbers that a network reads, in this order; None: all there are."""
    window: Annotated[int | None, SIZE] = None
    """The rows, one after the other, that are an example; None: each row is one."""
    stride: Annotated[int | None, SIZE] = None
    """The rows between the beginnings of windows that a client trains on: where two of them are
    neighbours, those between them count, too. None: no windows overlap."""
    length: Annotated[int | None, SIZE] = None
    """The steps of a series: those of the window, or of the arrays of an archive."""

    def __post_init__(self) -> None:
        _check_choice("data set", self.name, DATA_SETS)
        _check_choice("partition", self.partition, (*PARTITION_KINDS, *NATURAL))
        self._check_own()
        if not (self.alpha > 0 and math.isfinite(self.alpha)):
            raise DataError(f"alpha is {self.alpha}: expected a finite number above 0")
        if self.is_known and isinstance(self.facts, LanguageFacts):
            self._check_language(self.facts)
        elif self.words is not None:
            raise DataError(f"words is {self.words}, but {self.name} is no running text")
        elif self.is_known and not 1 <= self.classes_per_client <= self.facts.num_classes:
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

    def _check_own(self) -> None:
        """Raise for what is wrong of data of one's own, or is given for other data."""
        if not self.is_own:
            for name in _OWN_FIELDS:
                if getattr(self, name) is not None:
                    raise DataError(
                        f"{name} is {getattr(self, name)}, which is for data of one's own "
                        f"({', '.join(OWN_DATA)}), not for {self.name}: expected null"
                    )
        if self.partition in NATURAL and not self.is_own:
            raise DataError(
                f"partition is {self.partition}, which is for data of one's own "
                f"({', '.join(OWN_DATA)}), not for {self.name}; choose one of: "
                f"{', '.join(PARTITION_KINDS)}"
            )
        if self.partition == "folders" and self.name != FOLDER:
            raise DataError(
                f"partition is folders, but {self.name} has none: name the column of the clients, "
                "partition=column and column=NAME"
            )
        if (self.partition == "column") > (self.column is not None):
            raise DataError("partition is column, but column is null: expected a column's name")
        if self.classes is not None and not 2 <= len(set(self.classes)) == len(self.classes):
            raise DataError(
                f"classes are {', '.join(self.classes)}: expected at least 2, each of them once"
            )
        if self.test_share is not None and not 0 < self.test_share < 1:
            raise DataError(f"test_share is {self.test_share}: expected above 0 and below 1")
        if self.test_seed is not None and self.test_seed < 0:
            raise DataError(f"test_seed is {self.test_seed}: expected 0 or more")
        self._check_images()
        self._check_series()
        self._check_normal()

    def _check_series(self) -> None:
        """Raise for what is wrong of a table of numbers, or is given for other data."""
        if self.name == FOLDER and self.text is not None:
            raise DataError(
                f"text is {self.text}, which is for {TABLE}, not for {FOLDER}: expected null"
            )
        for name in ("columns", "window", "stride", "length"):
            if getattr(self, name) is not None and self.is_own and self.holds != "series":
                raise DataError(
                    f"{name} is {getattr(self, name)}, which is for tables of numbers, but this is "
                    f"data of {'texts' if self.text else 'images'}: expected null"
                )
        for name in ("window", "length"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise DataError(f"{name} is {getattr(self, name)}: expected at least 1")
        if self.stride is not None and (self.stride < 1 or (self.window or 1) % self.stride):
            raise DataError(
                f"stride is {self.stride}: expected a divisor of window, {self.window or 1}"
            )
        if self.columns is not None and not 1 <= len(set(self.columns)) == len(self.columns):
            raise DataError(
                f"columns are {', '.join(self.columns)}: expected at least 1, each of them once"
            )
        if self.label is not None and self.label in (self.columns or ()):
            raise DataError(
                f"{self.label!r} is among columns, but is the label, which is to be told from them"
            )

    def _check_normal(self) -> None:
        """Raise for means and deviations that are none of this data's."""
        is_images = self.name == FOLDER
        channels = self.channels if is_images else self.columns and len(self.columns)
        for name, numbers in {"mean": self.mean, "std": self.std}.items():
            if numbers is None:
                continue
            if channels is not None and len(numbers) != channels:
                raise DataError(
                    f"{name} is {list(numbers)}: expected a number for each of {channels} channels"
                )
            limit = 1.0 if is_images else math.inf
            least = 0.0 if is_images or name == "std" else -math.inf
            fits = all(least <= each <= limit and math.isfinite(each) for each in numbers)
            if not fits or (name == "std" and 0 in numbers):
                expected = "numbers from 0 to 1" if is_images else "finite numbers"
                more = ", above 0" if name == "std" else ""
                raise DataError(f"{name} is {list(numbers)}: expected {expected}{more}")

    def _check_images(self) -> None:
        if self.image_size is not None and not 1 <= self.image_size <= MOST_PIXELS:
            raise DataError(f"image_size is {self.image_size}: expected 1 to {MOST_PIXELS}")
        if self.channels not in (None, 1, 3):
            raise DataError(f"channels is {self.channels}: expected 1 (grey) or 3 (RGB)")
        if self.crop_padding is not None and not 0 <= self.crop_padding <= MOST_PIXELS:
            raise DataError(f"crop_padding is {self.crop_padding}: expected 0 to {MOST_PIXELS}")

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
    def is_own(self) -> bool:
        """Whether it is data of one's own, in no catalogue."""
        return self.name in OWN_DATA

    @property
    def is_known(self) -> bool:
        """Whether all is known of it that a network has to know; else it must be looked at."""
        needed = {
            "images": (self.classes, self.image_size, self.channels, self.mean, self.std),
            "tokens": (self.classes, self.text, self.label),
            "series": (self.classes, self.columns, self.length, self.mean, self.std),
        }
        return not self.is_own or None not in needed[self.holds]

    @property
    def facts(self) -> ImageFacts | SeriesFacts | TextFacts | LanguageFacts:
        """Return the facts of the data set."""
        return self._own_facts if self.is_own else CATALOG[self.name]

    @cached_property
    def _own_facts(self) -> ImageFacts | SeriesFacts | TextFacts:
        """Return the facts that this spec has of data that is in no catalogue."""
        if not self.is_known:
            raise DataError(f"{self.path} has not been looked at")
        assert self.classes is not None
        if self.holds == "tokens":
            return TextFacts(self.name, self.classes, exact=True)
        assert self.mean is not None
        assert self.std is not None
        if self.holds == "series":
            assert self.columns is not None
            assert self.length is not None
            return SeriesFacts(
                self.name, self.classes, self.columns, self.length, self.mean, self.std, exact=True
            )
        assert self.image_size is not None
        assert self.channels is not None
        padding = self.image_size // 8 if self.crop_padding is None else self.crop_padding
        return ImageFacts(
            self.name,
            self.classes,
            self.channels,
            self.image_size,
            self.mean,
            self.std,
            crop_padding=padding,
            flip=self.flip is not False,
            short_side=self.image_size,
            from_cameras=True,
            exact=True,
        )

    @property
    def is_natural(self) -> bool:
        """Whether the data itself says who its clients are."""
        return self.partition in NATURAL

    def undealt(self) -> DatasetSpec:
        """Return the same data, however it is dealt out: what its files are read for."""
        return replace(self, **{name: getattr(DatasetSpec, name) for name in _DEALING_FIELDS})

    @property
    def num_classes(self) -> int:
        """Return the number of classes: of a running text, the words of its vocabulary."""
        if isinstance(self.facts, LanguageFacts):
            return self.words or self.facts.words[self.tokenizer or WHITESPACE]
        return len(self.facts.classes)

    @property
    def holds(self) -> Literal["images", "series", "tokens", "language"]:
        """Return the kind of input that a network reads of it."""
        if self.is_own:
            if self.name == FOLDER:
                return "images"
            return "series" if self.text is None else "tokens"
        if isinstance(self.facts, LanguageFacts):
            return "language"
        return "images" if isinstance(self.facts, ImageFacts) else "tokens"

    @property
    def input_shape(self) -> dict[str, int]:
        """Return the size of an example, by the names that `models.Task` has for it."""
        if isinstance(self.facts, ImageFacts):
            return {"in_channels": self.facts.in_channels, "image_size": self.facts.image_size}
        if isinstance(self.facts, SeriesFacts):
            return {"in_channels": len(self.facts.columns), "length": self.facts.length}
        return {"tokens": self.max_tokens}


_OWN_FIELDS = (
    *("classes", "label", "column", "test_share", "test_seed", "image_size", "channels"),
    *("mean", "std", "crop_padding", "flip", "text", "test_column", "columns", "window"),
    *("stride", "length"),
)
_DEALING_FIELDS = (
    *("clients", "partition", "alpha", "classes_per_client", "examples_per_client", "shares"),
    *("min_examples", "validation", "test", "local_test", "local_test_examples", "server"),
    *("seed", "max_train", "max_test", "crop_padding", "flip", "stride"),
)
"""What the content of files does not depend on."""


def image_facts(spec: DatasetSpec) -> ImageFacts:
    """Return the facts of a data set of images."""
    assert isinstance(spec.facts, ImageFacts)
    return spec.facts


def series_facts(spec: DatasetSpec) -> SeriesFacts:
    """Return the facts of a table of numbers."""
    assert isinstance(spec.facts, SeriesFacts)
    return spec.facts


def text_facts(spec: DatasetSpec) -> TextFacts:
    """Return the facts of a data set of texts."""
    assert isinstance(spec.facts, TextFacts)
    return spec.facts


def _check_choice(what: str, chosen: str, choices: tuple[str, ...]) -> None:
    if chosen not in choices:
        raise DataError(f"unknown {what} {chosen!r}; choose one of: {', '.join(choices)}")
