"""What a fault is: a function that does the damage, judges what came of it, and says what was lost.

It asserts what must hold; an assertion that fails, any other error and a time that runs out make
the verdict FAILED, with the reason.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from trials.faults.processes import APP, Process

SURVIVED, STOPPED, FAILED, NOT_RUN = "survived", "stopped clearly", "FAILED", "not run"
LONGEST_LINE = 200


@dataclass(frozen=True)
class Outcome:
    """A row of the table, but for its name."""

    verdict: str
    lost: str
    saw: str = ""


def survived(lost: str = "nothing") -> Outcome:
    """The run went on and came to its end."""
    return Outcome(SURVIVED, lost)


def stopped(lost: str = "nothing") -> Outcome:
    """It ended with an error that says what to do."""
    return Outcome(STOPPED, lost)


def not_run(why: str) -> Outcome:
    return Outcome(f"{NOT_RUN}: {why}", "")


class Case:
    """One fault's directory, the one that all faults share, and what the user saw."""

    def __init__(self, folder: Path, shared: Path) -> None:
        self.folder, self.shared = folder, shared
        self.saw = ""

    def log(self, name: str) -> Path:
        """Where a process's output goes; never beside the runs, which have logs of their own."""
        (self.folder / "logs").mkdir(exist_ok=True)
        return self.folder / "logs" / f"{name}.log"

    def see(self, source: Process | str, pattern: str) -> str:
        """Take the first line that matches for what the user saw; there must be one.

        Paths are named first: the fault's own name is in them, and must not be what matches.
        """
        text = source if isinstance(source, str) else source.output()
        told = f"exit {source.code}: " if isinstance(source, Process) and source.ended else ""
        lines = [self.named(line.strip()) for line in text.splitlines() if line.strip()]
        found = [line for line in lines if re.search(pattern, line)]
        self.saw = shortened(told + (found or lines[-1:] or ["nothing"])[0])
        assert found, f"no line with /{pattern}/"
        return found[0]

    def named(self, text: str) -> str:
        """A printable text without this machine's paths."""
        for folder, name in ((self.folder, "DIR"), (self.shared, "DIR"), (APP, "CHECKOUT")):
            text = text.replace(str(folder), name)
        text = text.replace(tempfile.gettempdir(), "TMP")
        return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def shortened(text: str) -> str:
    return text if len(text) <= LONGEST_LINE else text[: LONGEST_LINE - 1] + "…"


@dataclass(frozen=True)
class Fault:
    name: str
    says: str
    """What happens, in one line."""
    do: Callable[[Case], Outcome]
    seconds: float
    """After which it has failed."""

    def outcome(self, case: Case) -> Outcome:
        try:
            found = self.do(case)
        except Exception as error:
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            why = str(error).splitlines()[0] if str(error) else "an assertion"
            found = Outcome(f"{FAILED}: {kind}{why}", "")
            case.saw = case.saw or shortened(case.named(f"{kind}{why}"))
        return Outcome(**{**asdict(found), "saw": case.saw})


FAULTS: dict[str, Fault] = {}


def fault(seconds: float = 240.0) -> Callable[[Callable[[Case], Outcome]], None]:
    """Add a function to the matrix; its docstring is the name in the table."""

    def register(do: Callable[[Case], Outcome]) -> None:
        name = do.__name__.replace("_", "-")
        FAULTS[name] = Fault(name, (do.__doc__ or name).strip().rstrip("."), do, seconds)

    return register
