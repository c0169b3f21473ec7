"""Plugins like users write them: a good network and method, which tests break line by line."""

from __future__ import annotations

from pathlib import Path

NETWORK = '''
from torch import Tensor, cat, nn

from models import Slice, SlicedNetwork, Walk, declare_parts, register
from models.families import going_on


@register("own", units=2)
class Own(SlicedNetwork):
    """Two convolutions side by side, an early exit, a third convolution and a final head."""

    def __init__(self, num_classes: int, in_channels: int, slice: Slice, bias: bool = True) -> None:
        super().__init__()
        left, right, last = slice.channels(4), slice.channels(8), slice.channels(12)
        self.left = nn.Conv2d(in_channels, left, 3, padding=1, bias=bias)
        self.right = nn.Conv2d(in_channels, right, 1)
        self.act = nn.ReLU()
        self.exits = nn.ModuleDict()
        if 1 in (slice.exits or ()):
            self.exits["1"] = nn.Linear(left + right, num_classes)
            declare_parts(self.exits["1"], "weight", 1, (left, right))
        if slice.exits is None or slice.exits[-1] == 2:
            self.third = nn.Conv2d(left + right, last, 3)
            declare_parts(self.third, "weight", 1, (left, right))
            self.fc = nn.Linear(last, num_classes)

    def walk(self, x: Tensor) -> Walk:
        x = self.act(cat((self.left(x), self.right(x)), 1))
        if "1" in self.exits:
            kept = yield self.exits["1"](x.mean((2, 3)))
            x = going_on(x, kept)
        if hasattr(self, "fc"):
            yield self.fc(self.act(self.third(x)).mean((2, 3)))
'''

METHOD = """
from dataclasses import dataclass

from models import Window
from strategies.round import NestedStrategy
from strategies.method_settings import PlannedSettings
from strategies.registry import register_method


@dataclass(frozen=True, kw_only=True)
class RollingSettings(PlannedSettings):
    step: int = 1


@register_method("rolling")
class Rolling(NestedStrategy):
    Settings = RollingSettings
    settings: RollingSettings

    def window_of(self, client: int, round: int) -> Window:
        return Window("rolling", seed=self.settings.step * round)
"""


def changed(old: str, new: str, code: str = NETWORK) -> str:
    """Return the code with one text replaced."""
    assert code.count(old) == 1, old
    return code.replace(old, new)


def saved(folder: Path, code: str = NETWORK, name: str = "mine.py") -> Path:
    """Write a plugin's file and return it."""
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(code)
    return file
