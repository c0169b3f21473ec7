"""Defines a fault: a function that does the damage, judges the result, and names the losses.

The function asserts the properties that must hold. A failed assertion, any other error or a timeout
makes the verdict FAILED, with the reason.
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
    """A row of the table, without its name."""

    verdict: str
    lost: str
    saw: str = ""


def survived(lost: str = "nothing") -> Outcome:
    """Return the outcome of a run that continued and came to its end."""
    return Outcome(SURVIVED, lost)


def stopped(lost: str = "nothing") -> Outcome:
    """Return the outcome of a run that ended with an error that names the remedy."""
    return Outcome(STOPPED, lost)


def not_run(why: str) -> Outcome:
    return Outcome(f"{NOT_RUN}: {why}", "")


class Case:
    """A fault's own directory, the directory shared by all faults, and the user's view."""

    def __init__(self, folder: Path, shared: Path) -> None:
        self.folder, self.shared = folder, shared
        self.saw = ""

    def log(self, name: str) -> Path:
        """Return the file of a process's output; runs have logs of their own."""
        (self.folder / "logs").mkdir(exist_ok=True)
        return self.folder / "logs" / f"{name}.log"

    def see(self, source: Process | str, pattern: str) -> str:
        """Record the first matching line as seen by the user; raise if there is none.

        Paths are replaced first: they contain the fault's own name, which must not match.
        """
        text = source if isinstance(source, str) else source.output()
        told = f"exit {source.code}: " if isinstance(source, Process) and source.ended else ""
        lines = [self.named(line.strip()) for line in text.splitlines() if line.strip()]
        found = [line for line in lines if re.search(pattern, line)]
        self.saw = shortened(told + (found or lines[-1:] or ["nothing"])[0])
        assert found, f"no line with /{pattern}/"
        return found[0]

    def named(self, text: str) -> str:
        """Return printable text without this machine's paths."""
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
    """Name of the fault in one line."""
    do: Callable[[Case], Outcome]
    seconds: float
    """Seconds after which it counts as failed."""

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
