"""What a run is made of, resolved and checked: conf/ as a frozen dataclass."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Literal

from strategies.federation import Federation, named
from strategies.method_settings import MethodSettings

Engine = Literal["ray", "local"]


@dataclass(frozen=True)
class TrackerConfig:
    """Where a run's numbers go besides its own directory; a tracker has some of these settings."""

    name: Literal["none", "wandb", "mlflow"] = "none"
    project: str = "nestfl"
    mode: Literal["online", "offline"] = "online"
    uri: str | None = None

    def check_installed(self) -> None:
        """Raise `ValueError` if the package that it takes is not here."""
        if self.name != "none" and find_spec(self.name) is None:
            raise ValueError(
                f"tracker={self.name} takes the package {self.name}, which is not installed: "
                f"pip install 'nestfl[{self.name}]'"
            )


@dataclass(frozen=True, kw_only=True)
class Config(Federation):
    """All that a run depends on: the federation, the method's settings, and where it is kept."""

    strategy: MethodSettings
    output: str
    name: str | None
    resume: str | None
    report: bool = True
    """Whether the run ends with a report: a page to look at."""
    tracker: TrackerConfig = field(default_factory=TrackerConfig)
    engine: Engine = "ray"
    """What `nestfl run` runs the app on: the weights are the same."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name is not None and not re.fullmatch(r"\w[\w.-]*", self.name):
            raise ValueError(f"name is {self.name!r}: expected letters, digits, '-', '_' and '.'")
        if not self.output.strip():
            raise ValueError("output is empty: expected a folder for run directories, such as runs")
        with named("strategy"):
            self.strategy.check(self)

    @property
    def label(self) -> str:
        """What was chosen, in short."""
        return f"{self.strategy.name}-{self.model.name}-{self.dataset.name}"
