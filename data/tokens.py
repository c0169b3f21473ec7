"""Texts as tokens, by the tokenizer of a pre-trained model or without one by hashing words."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from data.catalog import DataError
from data.homes import with_home
from data.hub import HUB, fetched
from plugins.regular_files import IrregularFileError, require_regular

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PADDING, BEGIN, END, FIRST_WORD = 0, 1, 2, 3
"""Tokens beside those of hashed words: the padding, and the two ends of a text."""
HASHED_WORDS = 4096
"""The vocabulary of hashed words: few of the words of a small data set share a token."""
HASHED = "hashed"
"""The tokenizer that hashes words, where its name has to be said: beside weights."""
PACKAGE = "package:"
TOKENIZER_FILE = "tokenizer.json"
PUBLISHED = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
"""Form of the names of models on Hugging Face, unlike most paths."""
PROBE = "A naïve CAFÉ's 3.14 tokens -- (isn't it?) ΑΩ 東京\n"
"""A sentence of which tokenizers of one vocabulary make different tokens."""


def encode(texts: Sequence[str], tokenizer: str | None, max_tokens: int) -> NDArray[np.int32]:
    """Return the tokens of each text, cut off at `max_tokens`, padded with 0 to the longest."""
    if tokenizer in (None, HASHED):
        rows = [_hashed(text, max_tokens) for text in texts]
    else:
        pretrained = _pretrained(tokenizer)
        pretrained.no_padding()  # a file may ask for it
        pretrained.enable_truncation(max_tokens)
        rows = [encoding.ids for encoding in pretrained.encode_batch(list(texts))]
    padded = np.full((len(rows), max(map(len, rows), default=0)), PADDING, np.int32)
    for row, tokens in zip(padded, rows, strict=True):
        row[: len(tokens)] = tokens
    return padded


def _hashed(text: str, max_tokens: int) -> list[int]:
    """Return words and signs as tokens that all machines agree on without a vocabulary."""
    words = re.findall(r"\w+|[^\w\s]", text.lower())[: max_tokens - 2]
    span = HASHED_WORDS - FIRST_WORD
    return [BEGIN, *(FIRST_WORD + zlib.crc32(word.encode()) % span for word in words), END]


def _pretrained(tokenizer: str) -> Tokenizer:
    from tokenizers import Tokenizer

    local = local_path(tokenizer)
    if local is None and not PUBLISHED.fullmatch(tokenizer.removeprefix(HUB)):
        raise DataError(
            f"the tokenizer {tokenizer} does not exist: expected a folder with {TOKENIZER_FILE}, "
            f"{HUB}NAME of a model on Hugging Face, {PACKAGE}NAME of a Python package, or {HASHED}"
        )
    file = fetched(tokenizer, TOKENIZER_FILE) if local is None else _tokenizer_file(local)
    try:
        require_regular(file)
        found = Tokenizer.from_file(str(file))
    except IrregularFileError as error:
        raise DataError(f"the tokenizer {error}") from error
    except Exception as error:  # the library raises Exception itself
        raise DataError(
            f"no tokenizer {tokenizer}: expected a folder with {TOKENIZER_FILE}, hub:NAME of a "
            f"model on Hugging Face or package:NAME ({type(error).__name__}: {error})"
        ) from error
    if found.id_to_token(PADDING) not in ("[PAD]", "<pad>"):
        raise DataError(
            f"the tokenizer {tokenizer} has {found.id_to_token(PADDING)!r} as its token 0: "
            "expected its padding there, as BERT's have it"
        )
    return found


def fingerprint(tokenizer: str | None) -> object:
    """Return the key of tokens: a file's path, size and time, or a published name."""
    local = local_path(tokenizer) if tokenizer is not None else None
    if local is None:
        return tokenizer
    file = _tokenizer_file(local)
    return str(file), file.stat().st_size, file.stat().st_mtime_ns


def identity(tokenizer: str | None) -> str | None:
    """Return a name of a pre-trained tokenizer's content, wherever it is; None for hashed words.

    It is a hash of its vocabulary, and of what it makes of a sentence. Not of its file, which each
    version of the library writes in its own way.
    """
    if tokenizer in (None, HASHED):
        return None
    pretrained = _pretrained(tokenizer)
    pretrained.no_padding()
    pretrained.no_truncation()
    made = sorted(pretrained.get_vocab().items()), pretrained.encode(PROBE).ids
    return hashlib.sha256(repr(made).encode()).hexdigest()[:16]


def local_path(place: str) -> Path | None:
    """Return the file or folder that a path or `package:NAME` means; None if it is neither.

    Of a package it is the outermost folder with a pre-trained model's `config.json`. It is not
    imported, so it is no part of another one: to find that, Python would import the other.
    """
    if place.startswith(HUB):
        return None
    if not place.startswith(PACKAGE):
        path = with_home(place)
        return path.resolve() if path.exists() else None
    name = place.removeprefix(PACKAGE)
    spec = find_spec(name) if name.isidentifier() else None
    roots = (spec and spec.submodule_search_locations) or ()
    configs = (config for root in roots for config in Path(root).rglob("config.json"))
    found = min(configs, key=lambda config: len(config.parts), default=None)
    if found is not None:
        return found.parent
    raise DataError(f"{place}: no such package is installed, or it holds no pre-trained model")


def _tokenizer_file(path: Path) -> Path:
    file = path / TOKENIZER_FILE if path.is_dir() else path
    if not file.exists():
        raise DataError(f"no {TOKENIZER_FILE} in {path}")
    return file
