"""Readers of image files: each returns uint8 images [n, channels, height, width] and labels [n]."""

from __future__ import annotations

import gzip
import io
import logging
import lzma
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.lib import format as npy_format
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from data.broken import Broken, raise_if
from data.catalog import DataError, ImageFacts
from plugins.regular_files import IrregularFileError, open_regular, require_regular

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
"""Whatever a file is called: Pillow would hand some others, such as EPS, to other programs."""
UNKNOWN = -1
"""The label of an example that has none, or whose class is not published (the tests of GLUE)."""

DEEP_MODES = ("I", "F")
"""Beginnings of Pillow's modes of more than 8 bits a pixel: converting them would clip values."""
GREY_MODES = frozenset({"1", "L", "LA", "La"})

log = logging.getLogger("flwr")  # whose lines `flwr log` shows

SplitName = Literal["train", "test"]
UNREADABLE = (
    *(OSError, EOFError, ValueError, TypeError, OverflowError, RuntimeError, MemoryError),
    *(BadZipFile, zlib.error, lzma.LZMAError),
)
"""What reading a broken file raises: Arrow's errors are subclasses of these."""
SMALL, GROWTH = 2**28, 100
"""Bytes that any file may take in memory, and how many times its own size a larger one may."""


class ImageSplit(NamedTuple):
    """Images and their labels, row by row."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


class ImageSplits(NamedTuple):
    """The examples to deal out to clients, and those nobody trains on."""

    train: ImageSplit
    test: ImageSplit


Reader = Callable[[Sequence[Path], ImageFacts, SplitName], ImageSplit]


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Turn what goes wrong in the block, while a file is read, into a `DataError` that names it."""
    try:
        yield
    except DataError as error:
        if str(file) in str(error):
            raise
        raise DataError(f"{file}: {error}") from error
    except IrregularFileError as error:
        raise DataError(str(error)) from error
    except UNREADABLE as error:
        raise DataError(f"{file} cannot be read: {str(error) or type(error).__name__}") from error


def most_memory(file: Path) -> int:
    """Return the bytes that a file's content may take in memory.

    A few bytes of a compressed file can stand for any number of equal values.
    """
    return max(SMALL, GROWTH * file.stat().st_size)


def require_memory(file: Path, needed: int) -> None:
    """Raise where a file's content, or a part of it, would take too much memory."""
    if needed > most_memory(file):
        raise DataError(
            f"{file} would take more than {most_memory(file) / 2**20:,.0f} MiB of memory, for "
            f"{file.stat().st_size:,} bytes on disk: expected at most {SMALL >> 20} MiB or "
            f"{GROWTH} times its size; write it with less compression"
        )


def unpacked(opened: IO[bytes], file: Path) -> bytes:
    """Return the content of a gzipped file that is open."""
    with gzip.open(opened) as packed:
        content = packed.read(most_memory(file) + 1)
    require_memory(file, len(content))
    return content


def read_image_folder(files: Sequence[Path], facts: ImageFacts, split: SplitName) -> ImageSplit:
    """Read images in one folder a class, which bears the class's name or number."""
    labels = np.array([facts.label_of(file.parent.name) for file in files])
    return checked_split(decode_images(files, len(files), facts), labels, facts)


def decode_images(
    encoded: Iterable[Path | str | io.BytesIO | Broken],
    count: int,
    facts: ImageFacts,
    place: Callable[[int], str] | None = None,
) -> NDArray[np.uint8]:
    """Read images in files or in memory as one array, [n, height, width, channels].

    All that cannot be read are told at once, under the names that `place` has for rows.
    """
    images, _, broken = decode_what_can_be(encoded, count, facts, place)
    raise_if(broken)
    return images


def decode_what_can_be(
    encoded: Iterable[Path | str | io.BytesIO | Broken],
    count: int,
    facts: ImageFacts,
    place: Callable[[int], str] | None = None,
) -> tuple[NDArray[np.uint8], NDArray[np.bool_], list[Broken]]:
    """Return the images that can be read, the rows that they are of, and the broken others."""
    mode = "L" if facts.in_channels == 1 else "RGB"
    size = facts.image_size
    images = np.empty((count, size, size, facts.in_channels), np.uint8)
    kept, converted, broken = np.zeros(count, bool), 0, list[Broken]()
    for row, file in enumerate(encoded):  # in one thread: small images decode no faster in more
        if isinstance(file, Broken):
            broken.append(file)
            continue
        name = place(row) if place else _shown(file, row)
        try:
            pixels, is_grey = _decoded(file, mode, facts)
        except ValueError as error:
            broken.append(Broken(name, f" cannot be decoded: {error}"))
            continue
        converted += is_grey != (mode == "L")
        if pixels.shape[:2] != (size, size):
            found = "x".join(map(str, pixels.shape[:2]))
            broken.append(Broken(name, f" has {found} pixels: {facts.name} has {size}x{size}"))
            continue
        images[row], kept[row] = pixels.reshape(images.shape[1:]), True
    _say_converted(converted, count, facts)
    return images[kept] if broken else images, kept, broken


def undecodable(
    encoded: Iterable[Path | str | io.BytesIO | Broken], place: Callable[[int], str]
) -> Iterator[Broken]:
    """Yield what is wrong with images of any size, each of which is decoded for that."""
    for row, file in enumerate(encoded):
        if isinstance(file, Broken):
            yield file
            continue
        try:
            with opened_image(file) as image:
                _upright(image).load()
        except ValueError as error:
            yield Broken(place(row), f" cannot be decoded: {error}")


def _decoded(
    file: Path | str | io.BytesIO, mode: str, facts: ImageFacts
) -> tuple[NDArray[np.uint8], bool]:
    """Return an image's pixels, as the data set has them, and whether it was stored in grey."""
    with opened_image(file) as image:
        if facts.from_cameras:
            # A JPEG is decoded at the least of 1/8, 1/4 and 1/2 of its size that is enough.
            image.draft(image.mode, (2 * facts.image_size,) * 2)
        turned = _upright(image) if facts.from_cameras else image
        fitted = _fitted(turned, facts) if facts.short_side is not None else turned
        return np.asarray(fitted.convert(mode)), image.mode in GREY_MODES


@contextmanager
def opened_image(file: Path | str | io.BytesIO) -> Iterator[Image]:
    """Open an image; raise `ValueError` for one that is broken, or would lose values."""
    from PIL import UnidentifiedImageError
    from PIL.Image import DecompressionBombError
    from PIL.Image import open as open_image

    try:
        if not isinstance(file, io.BytesIO):
            require_regular(file)
        with open_image(file, formats=IMAGE_FORMATS) as image:
            if image.mode.startswith(DEEP_MODES):
                raise ValueError(f"pixels of mode {image.mode}: expected 8 bits a channel")
            yield image
    except UnidentifiedImageError as error:  # whose text is of the object that it was given
        raise ValueError("it is no image of a known format, or lacks its beginning") from error
    except IrregularFileError as error:
        raise ValueError(f"it is {error.kind}: expected a regular file") from error
    except ValueError:
        raise
    except (OSError, SyntaxError, DecompressionBombError) as error:  # of a broken PNG a syntax's
        raise ValueError(str(error)) from error
    except Exception as error:  # decoders raise any, by what they take bytes for
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _upright(image: Image) -> Image:
    from PIL.ImageOps import exif_transpose

    return exif_transpose(image)


def _say_converted(converted: int, count: int, facts: ImageFacts) -> None:
    """Warn of images of other channels than the data set's, which are taken all the same."""
    others = "your images are" if facts.exact else f"{facts.name} is"
    if converted and facts.in_channels == 1:
        log.warning(
            "%d of %d images are stored in colour: %s read in grey, by their brightness",
            *(converted, count, others),
        )
    elif converted:
        log.warning(
            "%d of %d images are stored in grey: %s read in colour, from that one channel",
            *(converted, count, others),
        )


def _fitted(image: Image, facts: ImageFacts) -> Image:
    """Scale an image's short side to the data set's, and return its centre."""
    assert facts.short_side is not None
    size, scale = facts.image_size, facts.short_side / min(image.size)
    width, height = (round(length * scale) for length in image.size)
    left, top = (width - size) // 2, (height - size) // 2
    scaled = image if image.size == (width, height) else image.resize((width, height))
    return scaled.crop((left, top, left + size, top + size))


def _shown(file: Path | str | io.BytesIO, row: int) -> str:
    return f"the image in row {row}" if isinstance(file, io.BytesIO) else str(file)


def read_idx(files: Sequence[Path], facts: ImageFacts, split: SplitName) -> ImageSplit:
    """Read the two IDX files of MNIST, images first, gzipped or not."""
    images, labels = (_read_idx_array(file) for file in files)
    return checked_split(images, labels, facts)


def _read_idx_array(file: Path) -> NDArray[np.uint8]:
    with reading(file), open_regular(file) as opened:
        content = unpacked(opened, file) if file.suffix == ".gz" else opened.read()
    # Two zero bytes, the type (8 is uint8), the number of axes, then each axis as big-endian int32.
    axes = content[3] if len(content) > 3 else 0
    shape = tuple(np.frombuffer(content[4 : 4 + 4 * axes], ">i4").tolist())
    body = content[4 + 4 * axes :]
    if content[:3] != b"\x00\x00\x08" or len(shape) != axes or len(body) != math.prod(shape):
        raise DataError(f"{file} is no IDX file of bytes, or is cut short")
    return np.frombuffer(body, np.uint8).reshape(shape)


def read_npz(files: Sequence[Path], facts: ImageFacts, split: SplitName) -> ImageSplit:
    """Read a NumPy archive with arrays x and y, or x_train, y_train, x_test and y_test."""
    (file,) = files
    with opened_npz(file) as archive:
        for images, labels in ((f"x_{split}", f"y_{split}"), ("x", "y")):
            if images in archive and labels in archive:
                return checked_split(archive[images], archive[labels], facts)
        raise DataError(
            f"{file} holds {', '.join(archive.files)}: expected x and y, or x_{split} and y_{split}"
        )


@contextmanager
def opened_npz(file: Path) -> Iterator[NpzFile]:
    """Open a NumPy archive; what goes wrong while it is open is a `DataError` that names it."""
    with reading(file), open_regular(file) as opened:
        if opened.peek(len(npy_format.MAGIC_PREFIX)).startswith(npy_format.MAGIC_PREFIX):
            raise DataError(f"{file} is no archive: expected one of np.savez")
        with np.load(opened, allow_pickle=False) as archive:
            _check_arrays(file, archive.zip)
            yield archive


def _check_arrays(file: Path, archive: ZipFile) -> None:
    """Raise unless each array has the size that its header claims, and all fit into memory."""
    total = 0
    for member in archive.infolist():
        with archive.open(member) as array:
            shape, kind = _header_of(array, member.filename)
            claimed = math.prod(shape) * kind.itemsize
            if not kind.hasobject and claimed != member.file_size - array.tell():
                raise DataError(
                    f"{member.filename} claims the shape {shape} of {kind}, {claimed:,} bytes, but "
                    f"has {member.file_size - array.tell():,}"
                )
        total += member.file_size
        require_memory(file, total)


def _header_of(array: IO[bytes], name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Read the shape and the type at the beginning of an array's file."""
    try:
        version = npy_format.read_magic(array)
        read = {
            (1, 0): npy_format.read_array_header_1_0,
            (2, 0): npy_format.read_array_header_2_0,
        }[version]
        shape, _, kind = read(array)
    except (ValueError, KeyError):
        raise DataError(f"{name} is no array of numbers or texts") from None
    return shape, kind


def checked_split(images: NDArray[Any], labels: NDArray[Any], facts: ImageFacts) -> ImageSplit:
    """Return the arrays as a split of this data set; raise a `DataError` where they are none."""
    images, labels = channels_first(images, facts), labels.reshape(-1)
    if len(images) != len(labels) or not len(labels):
        raise DataError(f"{len(images)} images and {len(labels)} labels: expected one label each")
    whole = labels.dtype.kind in "iu"
    if not whole or labels.min() < 0 or labels.max() >= facts.num_classes:
        found = f" from {labels.min()} to {labels.max()}" if whole else f" such as {labels[0]!r}"
        raise DataError(
            f"labels of type {labels.dtype}{found}: expected whole numbers from 0 to "
            f"{facts.num_classes - 1}, the classes of {facts.name}"
        )
    return ImageSplit(images, labels.astype(np.int64))


def channels_first(images: NDArray[Any], facts: ImageFacts) -> NDArray[np.uint8]:
    """Return images as [n, channels, height, width]; raise where they are not the data set's.

    Grey ones stand for colour too, as they do in files.
    """
    channels, height, width = facts.image_shape
    if images.dtype != np.uint8:
        raise DataError(f"images of type {images.dtype}: expected uint8, 0 to 255")
    shape = images.shape[1:]
    if shape == (height, width, channels):
        images = images.transpose(0, 3, 1, 2)
    elif shape != facts.image_shape:
        if shape not in ((height, width), (height, width, 1), (1, height, width)):
            raise DataError(f"images of shape {shape}: {facts.name} has {facts.image_shape}")
        images = images.reshape(-1, 1, height, width).repeat(channels, axis=1)
        _say_converted(len(images) if channels > 1 else 0, len(images), facts)
    return np.ascontiguousarray(images)
