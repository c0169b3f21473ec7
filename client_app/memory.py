"""What a client remembers from one of its rounds to the next, in files of its own.

    NESTFL_MEMORY or ~/.local/state/nestfl/memory
        RUN/client-000003/round-000012.safetensors

A file outlives the client's process, the server and the run: a run that is resumed asks for the
memory of the last round whose reply it has, and so goes on with the same bits.
"""

from __future__ import annotations

import os
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.slicing import State
from protocol.environment import MEMORY
from protocol.records import Recall


def recall(wanted: Recall | None) -> dict[str, Tensor] | None:
    """Return what this client remembers, nothing in its first round; None where it is lost."""
    if wanted is None or wanted.round == 0:
        return {}
    try:
        return load_file(_folder(wanted) / _name(wanted.round))
    except (OSError, SafetensorError):
        return None


def remember(kept: Recall | None, round: int, memory: State) -> None:
    """Keep what this client remembers after a round, and drop all but the newest few."""
    if kept is None:
        return
    folder = _folder(kept)
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{_name(round)}.{os.getpid()}"
    save_file(
        {name: tensor.detach().cpu().contiguous() for name, tensor in memory.items()}, unfinished
    )
    os.replace(unfinished, folder / _name(round))
    # Those of later rounds are of a run that has gone back to an earlier one.
    files = sorted(folder.glob("round-*.safetensors"))
    earlier = [file for file in files if file.name <= _name(round)]
    for file in {*files} - {*earlier[-kept.keep :]}:
        file.unlink(missing_ok=True)


def _folder(recall: Recall) -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    memories = Path(os.environ.get(MEMORY) or Path(state, "nestfl", "memory"))
    return memories / recall.run / f"client-{recall.client:06d}"


def _name(round: int) -> str:
    return f"round-{round:06d}.safetensors"
