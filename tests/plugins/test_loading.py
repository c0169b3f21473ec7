"""A user's own file or folder is loaded, hashed and kept; errors name its line."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import plugins
from models import Task, build, family, names
from plugins import PluginError, load
from protocol.code import code_hash
from server_app.config.choices import choices
from server_app.config.composing import ConfigError, compose
from strategies.levels.plan_cache import kept
from strategies.registry import method
from tests.support.own_code import METHOD, NETWORK, changed, saved

pytestmark = pytest.mark.usefixtures("no_plugins_left")


def test_a_file_offers_its_network_and_its_method(tmp_path: Path) -> None:
    plugin = load(saved(tmp_path / "a folder", NETWORK + METHOD))
    assert list(plugin.offers) == [("model", "own"), ("strategy", "rolling")]
    assert family("own").units == 2
    assert method("rolling").__module__ == "plugins.mine"
    assert "own" in choices("model")
    assert "rolling" in choices("strategy")
    assert not (tmp_path / "a folder" / "__pycache__").exists()


def test_it_needs_no_yaml_and_has_its_own_keys(tmp_path: Path) -> None:
    load(saved(tmp_path, NETWORK + METHOD))
    config = compose("model=own strategy=rolling model.bias=false strategy.step=3 fleet=small")
    assert (config.model.name, dict(config.model.options)) == ("own", {"bias": False})
    assert config.strategy.ratios == config.fleet.budgets  # type: ignore[attr-defined]
    assert config.strategy.step == 3  # type: ignore[attr-defined]
    with pytest.raises(
        ConfigError, match="no key 'norm' in model; choose from bias, name, weights"
    ):
        compose("model=own model.norm=gn")
    with pytest.raises(ConfigError, match=r"no key 'beta' in strategy; .*step"):
        compose("strategy=rolling strategy.beta=1")


def test_levels_that_a_method_makes_itself_are_not_made_of_the_fleet_s(tmp_path: Path) -> None:
    halves = "    step: int = 1\n    widths: tuple[float, ...] | None = (0.5, 1.0)\n"
    load(saved(tmp_path, changed("    step: int = 1\n", halves, METHOD)))
    settings = compose("strategy=rolling").strategy
    assert settings.widths == (0.5, 1.0)  # type: ignore[attr-defined]
    assert settings.ratios is None  # type: ignore[attr-defined]


HALVES = """
from dataclasses import dataclass
from strategies.methods.heterofl import HeteroFL, HeteroFLSettings
from strategies.registry import register_method

@register_method("mine")
class Mine(HeteroFL):
    pass

@dataclass(frozen=True, kw_only=True)
class HalvesSettings(HeteroFLSettings):
    step: int = 2
    masked_loss: bool = False
    widths: tuple[float, ...] | None = (0.5, 1.0)

@register_method("halves")
class Halves(Mine):
    Settings = HalvesSettings

@dataclass(frozen=True, kw_only=True)
class RatiosSettings(HalvesSettings):
    widths: tuple[float, ...] | None = None
    ratios: tuple[float, ...] | None = (0.25, 1.0)

@register_method("ratios")
class Ratios(Halves):
    Settings = RatiosSettings
"""


def test_a_subclass_of_a_shipped_method_inherits_its_choices(tmp_path: Path) -> None:
    load(saved(tmp_path, HALVES))
    shipped, mine = (compose(f"strategy={name}").strategy for name in ("heterofl", "mine"))
    assert mine == replace(shipped, name="mine")
    assert mine.widths == (0.35, 0.5, 0.7, 1.0)  # type: ignore[attr-defined]
    changed = {"name": "halves", "masked_loss": False, "widths": (0.5, 1.0)}
    known = {**asdict(shipped), **changed, "step": 2}
    assert asdict(compose("strategy=halves").strategy) == known
    found = asdict(compose("strategy=ratios strategy.step=3").strategy)
    assert found == {**known, "name": "ratios", "widths": None, "ratios": (0.25, 1.0), "step": 3}


def test_what_an_experiment_says_for_a_method_is_inherited_but_for_own_defaults(
    tmp_path: Path,
) -> None:
    load(saved(tmp_path, HALVES))
    chosen = "experiment=bench_fedfa strategy={}"
    shipped, mine, halves, ratios = (
        compose(chosen.format(name)).strategy for name in ("heterofl", "mine", "halves", "ratios")
    )
    assert mine == replace(shipped, name="mine")
    assert mine.widths == (0.667, 1.0)  # type: ignore[attr-defined]
    assert (halves.widths, halves.rounding) == ((0.5, 1.0), "floor")  # type: ignore[attr-defined]
    assert (ratios.widths, ratios.ratios) == (None, (0.25, 1.0))  # type: ignore[attr-defined]


def test_a_folder_is_a_package_with_choices_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "with spaces" / "mine"
    saved(folder, "from .network import Own\n", "__init__.py")
    saved(folder, NETWORK, "network.py")
    saved(folder, "name: own\nbias: false\n", "conf/model/own-plain.yaml")
    saved(folder, "# @package _global_\ndefaults:\n  - override /model: own\nrounds: 3\n",
          "conf/experiment/mine.yaml")  # fmt: skip
    saved(folder, "raise RuntimeError", "test_network.py")
    saved(folder, "not sent", "notes.txt")
    plugin = load(folder)
    assert sorted(plugin.files) == [
        "mine/__init__.py", "mine/conf/experiment/mine.yaml", "mine/conf/model/own-plain.yaml",
        "mine/network.py",
    ]  # fmt: skip
    assert compose("model=own-plain").model.options == {"bias": False}
    config = compose("experiment=mine")
    assert (config.model.name, config.rounds) == ("own", 3)
    assert compose("model=resnet20").model.name == "resnet20"


def test_what_a_plugin_is_made_of_is_part_of_the_codes_hash(tmp_path: Path) -> None:
    before = code_hash()
    first = load(saved(tmp_path / "one", NETWORK))
    one = code_hash()
    plugins.unload(first)
    assert code_hash() == before
    load(saved(tmp_path / "two", NETWORK + "\n"))
    assert len({before, one, code_hash()}) == 3


def test_a_copy_is_loaded_from_where_it_was_kept(tmp_path: Path) -> None:
    plugin = load(saved(tmp_path, NETWORK))
    plugins.write(tmp_path / "run")
    assert (tmp_path / "run" / "plugins" / "mine.py").read_text() == NETWORK
    plugins.load_kept(tmp_path / "run")  # the same: there is nothing to do
    assert plugins.loaded() == [plugin]
    plugins.unload(plugin)
    assert "own" not in names()
    assert "plugins.mine" not in sys.modules
    plugins.load_kept(tmp_path / "run")
    assert build("own", 10).exits is not None


def test_another_plugin_of_the_same_name_is_refused(tmp_path: Path) -> None:
    load(saved(tmp_path / "a"))
    with pytest.raises(PluginError, match=r"b/mine.py differs from .*a/mine.py.* the same name"):
        load(saved(tmp_path / "b", NETWORK + "# changed"))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import no_such_module\n", r"mine.py, line 1: ModuleNotFoundError: .*from .blocks import"),
        ("x = 1\nx +\n", r"mine.py, line 2: SyntaxError: invalid syntax"),
        ("\n\nraise RuntimeError('no\\nluck')\n", r"mine.py, line 3: RuntimeError: no luck$"),
        ("import sys\nsys.exit(3)\n", r"mine.py, line 2: SystemExit: 3"),
        ("x = 1\n", r"mine.py registers nothing: expected a network"),
        (
            changed('"own"', '"resnet20"'),
            r"mine.py, line \d+: ValueError: a model named 'resnet20' is there already",
        ),
        (
            changed('"rolling")\nclass', '"heterofl")\nclass', METHOD),
            r"mine.py, line \d+: ValueError: a strategy named 'heterofl' is there already",
        ),
    ],
)
def test_a_plugin_that_cannot_be_loaded_leaves_nothing(
    code: str, message: str, tmp_path: Path
) -> None:
    registered = names()
    with pytest.raises(PluginError, match=message) as refused:
        load(saved(tmp_path, code))
    assert "\n" not in str(refused.value)
    assert (names(), plugins.loaded(), plugins.files()) == (registered, [], {})
    assert "plugins.mine" not in sys.modules
    load(saved(tmp_path, NETWORK))  # as soon as it is right


def test_what_fails_half_way_takes_back_what_it_registered(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="ZeroDivisionError"):
        load(saved(tmp_path, NETWORK + "1 / 0\n"))
    assert "own" not in names()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.py", "absent.py does not exist: expected a Python file"),
        ("notes.txt", "notes.txt is no Python file"),
        ("folder", "folder is no package: expected an __init__.py"),
        ("my-net.py", "cannot be called 'my-net': expected letters, digits and underscores"),
        ("test_mine.py", "cannot be called 'test_mine'"),
        ("load.py", "cannot be called 'load'"),
    ],
)
def test_what_is_no_plugin_is_told(name: str, message: str, tmp_path: Path) -> None:
    if name == "folder":
        (tmp_path / name).mkdir()
    elif name != "absent.py":
        saved(tmp_path, NETWORK, name)
    with pytest.raises(PluginError, match=re.escape(message)):
        load(tmp_path / name)


@pytest.fixture
def installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package that pip would have installed, with an entry point."""
    folder = saved(tmp_path / "site" / "their_nets", NETWORK, "__init__.py").parent
    points = "[nestfl.plugins]\ntheirs = their_nets\n"
    saved(tmp_path / "site", points, "their_nets-1.0.dist-info/entry_points.txt")
    saved(tmp_path / "site", "Name: their_nets\n", "their_nets-1.0.dist-info/METADATA")
    monkeypatch.syspath_prepend(tmp_path / "site")
    importlib.invalidate_caches()
    yield folder
    sys.modules.pop("their_nets", None)


def test_an_installed_package_is_found_by_what_it_registers(
    installed_package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only `nestfl` looks there: a server or a device takes plugins from its app alone."""
    monkeypatch.setattr(plugins, "_installed_too", False)
    with pytest.raises(ConfigError, match="unknown model 'own'"):
        compose("model=own")
    monkeypatch.setattr(plugins, "_installed_too", True)
    assert compose("model=own").model.name == "own"
    (plugin,) = plugins.chosen()
    assert plugin.path == installed_package
    assert list(plugins.files()) == ["plugins/their_nets/__init__.py"]


@pytest.mark.usefixtures("installed_package")
def test_an_installed_package_can_be_named() -> None:
    assert load("theirs").name == "their_nets"
    with pytest.raises(PluginError, match=r"the name of an installed one \(theirs\)"):
        load("others")


def test_runs_and_environments_in_a_package_are_no_parts_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    saved(folder, NETWORK, "__init__.py")
    saved(folder / "parts" / "inner", "x = 1\n", "deep.py")
    for place, mark in (
        ("runs/a", "fleet.json"),
        ("runs/b", ".launcher.lock"),
        ("v", "pyvenv.cfg"),
    ):
        saved(folder / place / "plugins", NETWORK, "mine.py")
        (folder / place / mark).touch()
        (folder / place / "config.yaml").touch()
    assert sorted(load(folder).files) == ["mine/__init__.py", "mine/parts/inner/deep.py"]


def test_what_comes_from_outside_is_told_and_nothing_is_kept_of_its_networks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    saved(tmp_path / "elsewhere", "K = 40\n", "helper_of_mine.py")
    outside = load(saved(tmp_path, f"from helper_of_mine import K\n{NETWORK}"))
    sys.modules.pop("helper_of_mine")
    assert outside.outside == (str(tmp_path / "elsewhere" / "helper_of_mine.py"),)
    assert "helper_of_mine.py, which is not sent along" in caplog.text
    counted: list[int] = []
    for _ in range(2):
        kept("test", Task("own"), None, lambda: counted.append(1) or {})  # type: ignore[func-returns-value]
    assert len(counted) == 2
    plugins.unload(outside)
    whole = load(saved(tmp_path, NETWORK))
    assert whole.outside == ()
    assert plugins.is_whole("plugins.mine")


def test_what_torch_brings_is_not_from_outside_of_the_plugin(tmp_path: Path) -> None:
    """A process that has not loaded torch yet, as that of `nestfl compare`."""
    file = saved(tmp_path)
    code = f"import plugins; print(plugins.load({str(file)!r}).outside)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "()\n"
    assert done.stderr == ""
