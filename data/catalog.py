"""The facts of each data set: its classes, its images or texts, and where it is published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

MOST_SHOWN = 20
"""Classes that a message names."""


class DataError(ValueError):
    """Data that is not there, is not what its name says, or cannot be parted as asked."""


class PartitionError(DataError):
    """Data that cannot be parted as asked: it tells numbers, and nothing of what files hold."""


class UnknownClassError(DataError):
    """Examples of classes that the run does not know.

    `numbers` is what others than their owner may be told: nothing of what files hold.
    """

    def __init__(self, text: str, numbers: str) -> None:
        super().__init__(text)
        self.numbers = numbers


@dataclass(frozen=True)
class DatasetFacts:
    """One data set: examples of some classes."""

    name: str
    classes: tuple[str, ...]
    hub: tuple[str, ...] = field(default=(), kw_only=True)
    """The arguments of `datasets.load_dataset` that fetch it; empty if it is nowhere."""
    hub_test: str = field(default="test", kw_only=True)
    """The split there whose labels are published, and which is not for training."""
    exact: bool = field(default=False, kw_only=True)
    """Whether a class is told by its very name alone, as in data of one's own: `1` may be a class
    of its own there, and not the second one."""

    @property
    def num_classes(self) -> int:
        """Return the number of classes."""
        return len(self.classes)

    @cached_property
    def _label_of_class(self) -> dict[str, int]:
        if self.exact:
            return {name: label for label, name in enumerate(self.classes)}
        names = {_folded(name): label for label, name in enumerate(self.classes)}
        return names | {str(label): label for label in range(self.num_classes)}

    def label_of(self, class_name: str) -> int:
        """Return the label of a class given by its name or number, the same on every device."""
        label = self._label_of_class.get(class_name if self.exact else _folded(class_name))
        if label is None and self.exact:
            raise UnknownClassError(
                f"{class_name!r} is no class of this run; its classes are: {self.shown_classes}",
                f"1 example is of none of its {self.num_classes} classes",
            )
        if label is None:
            raise DataError(
                f"{class_name!r} is no class of {self.name}; name it by its number "
                f"(0 to {self.num_classes - 1}) or one of: {', '.join(self.classes)}"
            )
        return label

    @property
    def shown_classes(self) -> str:
        """Return the names of the classes, as far as a message has room for them."""
        more = len(self.classes) - MOST_SHOWN
        return ", ".join(self.classes[:MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True)
class ImageFacts(DatasetFacts):
    """A data set of square images, and how papers prepare them."""

    in_channels: int
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop_padding: int = 0
    """Augmentation crops at random from the image padded by this much; 0 does not crop."""
    flip: bool = False
    """Augmentation mirrors half of the images, where a mirrored image keeps its class."""
    short_side: int | None = None
    """Images come in all sizes: each is scaled until its short side has so many pixels, then its
    centre is cut out. None takes no image of another size."""
    from_cameras: bool = False
    """Images may be as a camera left them: turned as it was held, and much larger than needed."""

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Return the channels, the height and the width."""
        return self.in_channels, self.image_size, self.image_size


@dataclass(frozen=True)
class TextFacts(DatasetFacts):
    """A data set of texts."""


@dataclass(frozen=True)
class LanguageFacts(DatasetFacts):
    """A running text, each of whose words is to be told from those before it.

    Its classes are the words of a vocabulary, which is that of its training text.
    """

    words: Mapping[str, int]
    """The size of the vocabulary, by the name of what makes words of a line (`data/words.py`)."""


@dataclass(frozen=True)
class SeriesFacts(DatasetFacts):
    """A table of numbers, some of whose rows, one after the other, are an example."""

    columns: tuple[str, ...]
    """The channels of a series, in this order."""
    length: int
    """The rows of an example."""
    mean: tuple[float, ...]
    """Of each column, over the training examples."""
    std: tuple[float, ...]


def _folded(class_name: str) -> str:
    return "".join(letter for letter in class_name.lower() if letter.isalnum())


_TEN_DIGITS = tuple("0123456789")
_CIFAR10_CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
"""CINIC-10's, too."""
_CIFAR100_CLASSES = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
    camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile
    cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp
    lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
    oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
    spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
    train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""

IMAGES = {
    facts.name: facts
    for facts in (
        ImageFacts("digits", _TEN_DIGITS, 1, 8, (0.3053,), (0.3760,), crop_padding=1),
        ImageFacts("mnist", _TEN_DIGITS, 1, 28, (0.1307,), (0.3081,), hub=("ylecun/mnist",)),
        ImageFacts(
            "fashion-mnist",
            (
                *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
                *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
            ),
            in_channels=1,
            image_size=28,
            mean=(0.2860,),
            std=(0.3530,),
            crop_padding=4,
            flip=True,
            hub=("zalando-datasets/fashion_mnist",),
        ),
        ImageFacts(
            "cifar10",
            _CIFAR10_CLASSES,
            in_channels=3,
            image_size=32,
            mean=(0.4914, 0.4822, 0.4465),
            std=(0.2470, 0.2435, 0.2616),
            crop_padding=4,
            flip=True,
            hub=("uoft-cs/cifar10",),
        ),
        ImageFacts(
            "cinic10",
            _CIFAR10_CLASSES,
            in_channels=3,
            image_size=32,
            mean=(0.4789, 0.4723, 0.4305),
            std=(0.2421, 0.2383, 0.2587),
            crop_padding=4,
            flip=True,
            hub=("flwrlabs/cinic10",),
        ),
        ImageFacts(
            "cifar100",
            tuple(_CIFAR100_CLASSES.split()),
            in_channels=3,
            image_size=32,
            mean=(0.5071, 0.4865, 0.4409),
            std=(0.2673, 0.2564, 0.2762),
            crop_padding=4,
            flip=True,
            hub=("uoft-cs/cifar100",),
        ),
        ImageFacts(
            "imagenet",
            tuple(map(str, range(1000))),
            in_channels=3,
            image_size=224,
            mean=(0.485, 0.456, 0.406),
            std=(0.229, 0.224, 0.225),
            crop_padding=28,
            flip=True,
            short_side=256,
            hub=("ILSVRC/imagenet-1k",),
            hub_test="validation",
        ),
        ImageFacts(
            "svhn",
            _TEN_DIGITS,
            in_channels=3,
            image_size=32,
            mean=(0.4377, 0.4438, 0.4728),
            std=(0.1980, 0.2010, 0.1970),
            crop_padding=4,
            hub=("ufldl-stanford/svhn", "cropped_digits"),
        ),
    )
}

TEXTS = {
    facts.name: facts
    for facts in (
        # First paragraphs of the docstrings of libraries that we need anyway: which one is it of?
        # Two machines have the same texts if they have the same versions.
        TextFacts("docstrings", ("flwr", "matplotlib", "numpy", "sklearn")),
        TextFacts("sst2", ("negative", "positive"), hub=("stanfordnlp/sst2",)),
        TextFacts(
            "ag-news", ("World", "Sports", "Business", "Sci/Tech"), hub=("fancyzhx/ag_news",)
        ),
    )
}

LANGUAGE = {
    facts.name: facts
    for facts in (
        LanguageFacts(
            "wikitext2",
            (),
            {"whitespace": 33278, "basic-english": 28782},
            hub=("Salesforce/wikitext", "wikitext-2-v1"),
        ),
        # The texts of `docstrings`, as one: how many words there are depends on the versions, but
        # there are more than so many.
        LanguageFacts("docstrings-words", (), {"whitespace": 2000, "basic-english": 2000}),
    )
}

CATALOG: dict[str, ImageFacts | TextFacts | LanguageFacts] = {**IMAGES, **TEXTS, **LANGUAGE}
