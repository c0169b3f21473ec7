"""Stores a client's memory between its rounds, in a file for each round.

    NESTFL_MEMORY or ~/.local/state/nestfl/memory
        RUN/client-3/round-000012.safetensors

A file outlives the client's process, the server and the run. A resumed run asks for the memory of
the last round whose reply it has, and so continues with the same bits.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.slicing import State
from protocol.environment import MEMORY
from protocol.work import Recall


@dataclass(frozen=True)
class Memory:
    """The memory of one client, for methods that keep some."""

    owner: str
    """Name of the client, unique on this machine."""
    wanted: Recall | None

    def recall(self) -> dict[str, Tensor] | None:
        """Return the memory: empty in the client's first round; None if it is lost."""
        if self.wanted is None or self.wanted.round == 0:
            return {}
        try:
            return load_file(self._file(self.wanted.round))
        except (OSError, SafetensorError):
            return None

    def keep(self, round: int, memory: State) -> None:
        """Store the memory after a round, and delete files that no resumed run can ask for."""
        if self.wanted is None:
            return
        file = self._file(round)
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_name(f".{file.name}.{os.getpid()}")
        plain = {name: t.detach().cpu().clone().contiguous() for name, t in memory.items()}
        save_file(plain, unfinished)
        os.replace(unfinished, file)
        # Later rounds' files belong to a run that has gone back to an earlier round.
        files = sorted(file.parent.glob("round-*.safetensors"))
        earlier = [each for each in files if each.name <= file.name][-self.wanted.keep :]
        for each in {*files} - {*earlier, self._file(self.wanted.round)}:
            each.unlink(missing_ok=True)

    def _file(self, round: int) -> Path:
        assert self.wanted is not None
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        memories = Path(os.environ.get(MEMORY) or Path(state, "nestfl", "memory"))
        folder = f"{self.owner}-turn-{self.wanted.turn}" if self.wanted.turn else self.owner
        return memories / self.wanted.run / folder / f"round-{round:06d}.safetensors"
