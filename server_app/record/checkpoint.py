"""Checkpoints: one safetensors file each, with the rest of the state as JSON in its metadata.

A checksum beside the JSON covers everything that is read: a file that a disk has changed is never
loaded. The best checkpoint, of the round with the highest validation score, is kept beside the
newest ones.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from plugins.regular_files import require_regular
from protocol.documents import DocumentError, conforming, parse_json
from server_app.record.files import remove_unfinished, written_atomically
from server_app.record.metrics import RoundMetrics

if TYPE_CHECKING:
    from torch import Tensor
import math
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from server_app.record import checkpoint
from training.perplexity import perplexity_of

FOLDER = "checkpoints"
"""The folder of a run directory that holds the checkpoints."""
NEWEST, BEST = "round-*.safetensors", "best.safetensors"
"""The files there: of the newest rounds, and of the one with the best score."""
METADATA_KEY, CHECKSUM_KEY = "nestfl", "checksum"
FORMAT = 2
WITHOUT_CHECKSUM = 1
"""Format number of checkpoints from before there were checksums."""
SCORE = "validation"
"""The metric that rounds are compared by: the accuracy, or a language model's perplexity."""
log = logging.getLogger("flwr")  # the logger that `flwr log` shows


class State(TypedDict, total=False):
    """The part of a checkpoint besides tensors."""

    metrics: RoundMetrics  # of its round


class Header(TypedDict):
    """The metadata of a checkpoint's file."""

    format: int
    round: int
    state: State


class CheckpointError(ValueError):
    """A file that is no complete checkpoint, or a place without one."""


@dataclass(frozen=True)
class Checkpoint:
    """The state with which a run continues after round `round`."""

    path: Path
    round: int
    tensors: Mapping[str, Tensor]
    state: Mapping[str, Any]


def save(
    directory: Path,
    round: int,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    keep: int = 2,
) -> Path:
    """Write a checkpoint, then remove all but the newest `keep`.

    `state` must be JSON's own types: texts as keys, lists and no tuples. Checkpoints of later
    rounds come from a run that was resumed from an earlier one; they are removed, too.
    """
    file = write(directory / f"round-{round:06d}.safetensors", round, tensors, state)
    kept = [path for path in _newest_first(directory) if path.name <= file.name][:keep]
    for path in _newest_first(directory):
        if path not in kept:
            path.unlink(missing_ok=True)
    remove_unfinished(directory)
    return file


def write(file: Path, round: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Path:
    """Write a checkpoint to a file; at any moment the file is the old or the new one."""
    from safetensors.torch import save_file

    file.parent.mkdir(parents=True, exist_ok=True)
    header = {"format": FORMAT, "round": round, "state": state}
    text, plain = json.dumps(header), _unshared(tensors)
    metadata = {METADATA_KEY: text, CHECKSUM_KEY: _checksum(text, plain)}
    with written_atomically(file) as unfinished:
        save_file(plain, unfinished, metadata)
    return file


def load(path: Path) -> Checkpoint:
    """Load the checkpoint in a file, or the newest undamaged one of a run directory."""
    if not path.is_dir():
        return _load_file(path)
    directory = path / FOLDER if (path / FOLDER).is_dir() else path
    broken = []
    for file in _newest_first(directory):
        try:
            return _load_file(file)
        except CheckpointError as error:
            log.warning("%s; trying the one before", error)
            broken.append(str(error))
    raise CheckpointError("; ".join([f"no whole checkpoint in {directory}", *broken]))


def load_best(run: Path) -> Checkpoint:
    """Load the best checkpoint of a run directory, or raise `CheckpointError`."""
    file = run / FOLDER / BEST
    if not file.exists():
        raise CheckpointError(
            f"{run} has no best checkpoint: a run keeps one from its first test on, where "
            "checkpoint.best is true and dataset.validation above 0"
        )
    return checkpoint.load(file)


def worth_of(metrics: Mapping[str, Any]) -> float | None:
    """Return a round's score, higher is better; None if clients did not validate."""
    accuracy: float | None = metrics.get(SCORE)
    if perplexity_of(SCORE) not in metrics:
        return accuracy
    value: float | None = metrics[perplexity_of(SCORE)]
    return -math.inf if value is None else -value  # null stands for an infinite perplexity


class BestCheckpoint:
    """Keeps the checkpoint with the highest score; among equal scores the earliest."""

    def __init__(self, directory: Path) -> None:
        """Prepare to keep the best checkpoint in `directory`, the folder of a run's checkpoints."""
        self.file = directory / BEST
        self.metrics: Mapping[str, Any] | None = None
        """Metrics of the kept round; None before the first one."""
        self._warned = False

    def consider(
        self, metrics: Mapping[str, Any], tensors: Callable[[], Mapping[str, Tensor]]
    ) -> None:
        """Keep a round if it is the best so far; `tensors` returns its state."""
        score = worth_of(metrics)
        best = worth_of(self.metrics or {})
        if score is None:
            self._say_what_lacks(metrics)
        elif best is None or score > best:
            state = {"metrics": dict(metrics)}
            checkpoint.write(self.file, metrics["round"], tensors(), state)
            self.metrics = metrics

    def go_on(self, start: Checkpoint) -> None:
        """Continue with an earlier start's best checkpoint; delete one of a round after `start`.

        The round of `start` is considered again: its run may have been killed before it was kept
        here.
        """
        if self.file.exists():
            try:
                kept = checkpoint.load(self.file)
                if kept.round > start.round:
                    self.file.unlink()
                elif SCORE in kept.state.get("metrics", {}):
                    self.metrics = kept.state["metrics"]
            except CheckpointError as error:
                log.warning("%s; the best of the rounds to come takes its place", error)
        found = start.state.get("metrics", {})
        if found.get(SCORE) is not None:
            self.consider(found, lambda: start.tensors)

    def say_what_counts(self, held: AbstractSet[int], validated: AbstractSet[int]) -> None:
        """Warn if some level has no validation examples; rounds are compared by the others."""
        unknown = ", ".join(map(str, sorted(held - validated)))
        if not validated:
            log.warning(
                "no client has validation examples: no best checkpoint is kept, only the newest; "
                "dataset.validation is the share of each client's examples, rounded down"
            )
        elif unknown:
            log.warning(
                "no client of level %s has validation examples: rounds are compared by the other "
                "levels alone, and the best checkpoint is chosen so",
                unknown,
            )

    def _say_what_lacks(self, metrics: Mapping[str, Any]) -> None:
        asked = metrics.get("asked", {}).get(SCORE)
        if asked is not None and asked["asked"] and not self._warned:
            self._warned = True
            log.warning(
                "no validation score after round %d, so it cannot be the best: %d of %d clients "
                "answered, and nobody of one level at least",
                *(metrics["round"], asked["answered"], asked["asked"]),
            )


def _load_file(file: Path) -> Checkpoint:
    from safetensors import SafetensorError, safe_open

    try:
        require_regular(file)
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata() or {}
            text = metadata[METADATA_KEY]
            header = parse_json(text, file, dict, nan=True)
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        if header["format"] not in (FORMAT, WITHOUT_CHECKSUM):
            raise CheckpointError(f"{file} has format {header['format']}, not {FORMAT}")
        checked = header["format"] != WITHOUT_CHECKSUM or CHECKSUM_KEY in metadata
        if checked and metadata.get(CHECKSUM_KEY) != _checksum(text, tensors):
            raise CheckpointError(f"{file} is damaged: its checksum is of other contents")
        conforming(header, Header, file, nan=True)
        return Checkpoint(file, header["round"], tensors, header["state"])
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file} is not a whole checkpoint: {error}") from error
    except (KeyError, DocumentError) as error:
        lack = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        lack = lack.removeprefix(f"{file} cannot be read: ")
        raise CheckpointError(f"{file} is not a checkpoint of nestfl: {lack}") from error


def _checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    """Return a checksum of the header's text and the tensors' names, types, shapes and bytes."""
    import torch

    found = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        found.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _newest_first(directory: Path) -> list[Path]:
    return sorted(directory.glob(NEWEST), reverse=True)


def _unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors in the form that safetensors takes: CPU, contiguous, no shared memory."""
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        storage = plain.untyped_storage().data_ptr()
        result[name] = plain.clone() if storage in seen else plain
        seen.add(storage)
    return result
