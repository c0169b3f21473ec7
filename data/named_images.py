"""Images that tables name by path: relative to the table, and below the folder of the data.

A table may be from anybody. So it opens nothing outside of the folder that the run, or the owner of
a device, has named; and the images that it names are part of what a cached copy depends on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from data.cache import Fingerprint, cached_arrays, fingerprint_of

Named = Callable[[int, str], Path | str]
"""Returns the image that a row names by path, or what is wrong with that."""
Names = Callable[[], Iterable[tuple[Path, str]]]
"""Returns what tables name: a table and a path each."""


def folder_of(place: Path) -> Path:
    """Return the folder in which the tables of a place, a file or a folder, may name images."""
    place = place.expanduser().resolve()
    return place if place.is_dir() else place.parent


def named_image(text: str, table: Path, root: Path) -> Path | str:
    """Return the image that a table names, or why it is not opened: it must lie below `root`."""
    named = table.parent / text
    try:
        file = Path(os.path.realpath(named))
    except (OSError, ValueError) as error:  # of a text that is no path
        return f" names {text[:200]!r}, which is no path: {error}"
    if not file.is_relative_to(root.resolve()):
        return (
            f" names {text}, which is outside of {root}: expected an image in there, by its path "
            "from the table's folder"
        )
    return file if os.path.isfile(file) else f" names {text}, but {named} is no file"


def paths_in(column: Any) -> list[str]:
    """Return the paths in an Arrow column of images: texts, or structs without `bytes`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_struct(column.type):
        fields = {field.name: field.type for field in column.type}
        if "path" not in fields:
            return []
        paths = pc.struct_field(column, "path")
        if "bytes" in fields and not pa.types.is_null(fields["bytes"]):
            paths = paths.filter(pc.is_null(pc.struct_field(column, "bytes")))
        column = paths
    elif pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return []
    return [text for text in column.to_pylist() if isinstance(text, str)]


def named_files(
    kind: Literal["own", "catalogue"], tables: Sequence[Path], names: Names
) -> list[Path]:
    """Return the paths that tables name, be there files or not; read once until a table changes."""

    def read() -> dict[str, Any]:
        files = dict.fromkeys(os.path.normpath(table.parent / text) for table, text in names())
        return {"files": np.array([os.fsencode(file).hex() for file in files], np.str_)}

    found = cached_arrays("named", (kind, fingerprint_of(tables)), read)["files"].tolist()
    return [Path(os.fsdecode(bytes.fromhex(file))) for file in found]


def fingerprint_of_named(files: Iterable[Path]) -> Fingerprint:
    """Return size and time of change of the images that tables name.

    Whoever reads the tables says of those that are missing.
    """
    return fingerprint_of(file for file in files if os.path.isfile(file))
