"""Compare data of one's own with what it was: a resumed run would deal other data out anew.

It goes by what files hold, not by where they lie or when they were written, and not by pixels, of
which decoders of two machines may make others.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data.cache import cached_arrays
from data.catalog import DataError
from data.foreign_files import reading
from data.image_tables import folder_of, named_image
from data.listing import own_files
from data.own_files import OwnFiles
from data.own_source import TEST_SHARE, fingerprint_of_own, named_by, own_arrays, reading_of
from data.spec import DatasetSpec
from plugins.regular_files import open_regular


class Digest(NamedTuple):
    """How many examples there are, and which."""

    train: int
    test: int
    content: str
    """The same for the same examples in the same order and parts, wherever they are."""


def digest_of(spec: DatasetSpec) -> Digest:
    """Return the digest of data of one's own; its files are read once, until one changes."""
    files, arrays = own_files(spec), own_arrays(spec)
    key = (replace(reading_of(spec), path=None), fingerprint_of_own(files, spec))

    def read() -> dict[str, np.ndarray]:
        held_out = [spec.test_share or TEST_SHARE, spec.test_seed or 0, spec.test_column]
        whole = hashlib.sha256(json.dumps(held_out).encode())
        for part in (files.train, files.test, files.validation, _named_by(files, spec)):
            for file in part:
                with reading(file), open_regular(file) as content:
                    whole.update(hashlib.file_digest(content, "sha256").digest())
            whole.update(b"end of a part")
        for name in ("train-labels", "test-labels", "train-owners", "train-places"):
            whole.update(arrays[name].tobytes() if name in arrays else b"none")
        return {"content": np.array(whole.hexdigest()[:32])}

    content = str(cached_arrays("digest", key, read)["content"])
    return Digest(len(arrays["train-labels"]), len(arrays["test-labels"]), content)


def _named_by(files: OwnFiles, spec: DatasetSpec) -> list[Path]:
    """Return the images that tables name, without those that are not to be opened.

    Tables that a run finds but does not read, such as one for validation beside one for the test,
    may name what is missing, or elsewhere.
    """
    root = folder_of(files.path)
    named = (named_image(str(file), file, root) for file in named_by(files, spec))
    return [file for file in named if isinstance(file, Path)]


def require_same(spec: DatasetSpec, before: Digest) -> None:
    """Raise where data is not what it was."""
    now = digest_of(spec)
    if now == before:
        return
    counts = f"{now.train} examples to train on and {now.test} to test on, "
    if now[:2] == before[:2]:
        what = counts + "as before, but not the same ones"
    else:
        what = counts + f"which were {before.train} and {before.test}"
    raise DataError(
        f"{spec.path} has changed since the run was started: {what}; going on, it might test on "
        "what it has trained on: put the files and dataset.test_* back, or start a new run"
    )
