"""A network that lacks a property of slicing gets its name and the needed change."""

from __future__ import annotations

from pathlib import Path

import pytest

import plugins
from models import Task
from strategies.network_checks import CHECKS, findings
from tests.support.own_code import NETWORK, changed, saved

pytestmark = pytest.mark.usefixtures("no_plugins_left", "one_thread")


def wrong(folder: Path, code: str) -> dict[str, str]:
    """Return the faults of a plugin's network, by property."""
    plugin = plugins.load(saved(folder, code))
    task = Task("own", num_classes=5, image_size=8)
    found = list(findings(task, lambda error: plugins.place_of(error, plugin)))
    assert [each.name for each in found] == list(CHECKS)
    return {each.name: each.wrong for each in found if each.wrong}


def test_a_network_that_has_them_all_passes(tmp_path: Path) -> None:
    assert wrong(tmp_path, NETWORK) == {}


ACT = "        self.act = nn.ReLU()\n"
BEGINS = "    def walk(self, x: Tensor) -> Walk:\n"
CHANNELS = "        left, right, last ="
BOTH = """        last = self.act(self.third(x)).mean((2, 3)) if hasattr(self, "fc") else x
        if "1" in self.exits:
            kept = yield self.exits["1"](x.mean((2, 3)))
            last = going_on(last, kept)
        if hasattr(self, "fc"):
            yield self.fc(last)
"""
WALK = NETWORK[NETWORK.index('        if "1" in self.exits:\n            kept') :]
LAST_FIRST = """        if hasattr(self, "fc"):
            yield self.fc(self.act(self.third(x)).mean((2, 3)))
        if "1" in self.exits:
            yield self.exits["1"](x.mean((2, 3)))
"""


@pytest.mark.parametrize(
    ("code", "name", "message"),
    [
        pytest.param(
            changed('            declare_parts(self.third, "weight", 1, (left, right))\n', ""),
            "sliced equals masked",
            'third is the first layer that differs. It reads 6 of 12 inputs',
            id="forgets declare_parts",
        ),
        pytest.param(
            changed("self.third(x)).mean((2, 3))", "self.third(x)).mean((2, 3)) / x.shape[1]"),
            "sliced equals masked",
            "fc is the first layer that differs.",
            id="depends on the number of channels",
        ),
        pytest.param(
            changed("self.fc(self.act(self.third(x)).mean((2, 3)))",
                    "self.fc(self.act(self.third(x)).mean((2, 3))) * x.shape[1]"),
            "sliced equals masked",
            "all layers answer alike, so it is what is done with their answers",
            id="scales its answer by the number of channels",
        ),
        pytest.param(
            changed("self.fc = nn.Linear(last, num_classes)",
                    'self.add_module(f"fc{last}", nn.Linear(last, num_classes))')
            .replace('hasattr(self, "fc")', 'hasattr(self, "third")')
            .replace("self.fc(", 'getattr(self, f"fc{self.third.out_channels}")('),
            "slices keep names, and fit",
            "fc3.weight (5, 3) of the slice is not in the full network: give a layer the name",
            id="renames layers",
        ),
        pytest.param(
            changed(ACT, f"{ACT}        self.extra = nn.Linear(2, 2)\n"),
            "gradients reach all that is sent",
            "extra.weight, extra.bias get no gradient: build only what",
            id="unused parameter",
        ),
        pytest.param(
            changed("if slice.exits is None or slice.exits[-1] == 2:", "if True:")
            .replace('hasattr(self, "fc")', "self.last == 2")
            .replace("super().__init__()",
                     "super().__init__(); self.last = slice.exits[-1] if slice.exits else 2"),
            "gradients reach all that is sent",
            "exits=(1,)): third.weight, third.bias, fc.weight and 1 more get no gradient",
            id="builds what lies behind its exit",
        ),
        pytest.param(
            NETWORK.replace(WALK, LAST_FIRST),
            "exits in order, as many as asked",
            "the exit behind unit 1 is answer 2 of 2: yield the logits in the order of the units",
            id="exits out of order",
        ),
        pytest.param(
            changed("x = going_on(x, kept)", "pass"),
            "samples may leave at exits",
            "at exit 2 those who stay are answered otherwise",
            id="goes on with those who left",
        ),
        pytest.param(
            NETWORK.replace(WALK, BOTH),
            "nothing runs beyond an exit",
            "have run when the exit behind unit 1 answers",
            id="runs on before it answers",
        ),
        pytest.param(
            changed("slice.channels(4), slice.channels(8), slice.channels(12)", "4, 8, 12"),
            "cost falls with width and depth",
            "half of the width has",
            id="does not ask for its width",
        ),
        pytest.param(
            changed(ACT, f"{ACT}        self.seen = cat((self.right.bias.detach(),))\n")
            .replace(BEGINS, f"{BEGINS}        self.seen = self.seen + self.training\n"),
            "buffers that are not sent stay",
            "seen changes in training, and is in no state dict",
            id="hidden buffer",
        ),
        pytest.param(
            changed(ACT, f"{ACT}        self.same = self.left\n"),
            "state dict is all there is",
            "left.weight and same.weight are one tensor",
            id="one tensor with two names",
        ),
        pytest.param(
            changed("self.act(self.third(x)).mean((2, 3))",
                    "nn.functional.dropout(self.act(self.third(x)).mean((2, 3)))"),
            "nothing is left to chance",
            "the same input has two answers",
            id="dropout at test time",
        ),
        pytest.param(
            changed(CHANNELS, f"        assert slice.share() > 0.3, 'too narrow'\n{CHANNELS}"),
            "builds at all widths, depths and exits",
            "Slice(width=0.25, exits=(1,)): AssertionError: too narrow (",
            id="raises in its constructor",
        ),
        pytest.param(
            changed('        if hasattr(self, "fc"):\n', '        if "1" not in self.exits:\n'),
            "builds at all widths, depths and exits",
            "1 answers of shapes [(4, 5)]: expected 2, one of each exit held",
            id="too few answers",
        ),
    ],
)  # fmt: skip
def test_a_broken_network_is_told_what_to_change(
    code: str, name: str, message: str, tmp_path: Path
) -> None:
    found = wrong(tmp_path, code)
    assert message in found[name], found
    assert "\n" not in found[name]


def test_an_error_of_the_constructor_names_its_line_and_ends_the_checks(tmp_path: Path) -> None:
    code = changed("super().__init__()", "super().__init__()\n        1 / 0")
    line = 1 + code.splitlines().index("        1 / 0")
    found = wrong(tmp_path, code)
    assert list(found) == ["builds at all widths, depths and exits"]
    (told,) = found.values()
    assert told.endswith(f"ZeroDivisionError: division by zero ({tmp_path}/mine.py, line {line})")


@pytest.mark.parametrize(
    "task",
    [
        Task("resnet20", image_size=8, options=(("head", "pool"), ("norm", "bn-running"))),
        Task("vit-micro", image_size=8, options=(("image_size", 8), ("patch", 4))),
        Task("bert-tiny", tokens=8, options=(("vocabulary", 50),)),
        Task("transformer-micro", num_classes=50, tokens=8),
    ],
    ids=lambda task: task.model,
)
def test_our_own_networks_have_them_all(task: Task) -> None:
    found = findings(task, lambda error: None)
    assert {each.name: each.wrong for each in found if each.wrong} == {}
