"""Loads a user's own networks and methods from files anywhere: `load("mine.py")`.

A plugin is a Python file, or a folder that is a package, and is imported as `plugins.NAME`. The app
that a run sends to its clients has the same files in this very folder, so all sides import them
under one name. A run's directory keeps a copy of them in its own folder `plugins`.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import site
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

FOLDER = "plugins"
"""Name of the folder of plugins, here and in a run's directory."""
ENTRY_POINTS = "nestfl.plugins"
"""Entry-point group in which installed packages name their plugins."""
PLACE = "NESTFL_PLUGINS"
"""Environment variable with the directory where a simulation's processes find the run's plugins."""
SHIPPED = (".py", ".yaml")
"""Endings of a plugin's files that are sent along; other files stay where they are."""
OWN_FILES = frozenset({"__init__.py", "regular_files.py"})
"""Files of this package that are no plugins."""
NO_PARTS = frozenset({"fleet.json", ".launcher.lock", ".record.lock", "pyvenv.cfg"})
"""Files that mark a run's directory or a Python environment, which no plugin includes."""


class PluginError(ValueError):
    """A plugin that cannot be used; one sentence with its file and line."""


@dataclass
class Plugin:
    """A file or a package, with the names that it registered when it was loaded."""

    name: str
    path: Path
    files: Mapping[str, bytes]
    """Contents of its files, by their names in a folder of plugins."""
    offers: dict[tuple[str, str], Callable[[], object]] = field(default_factory=dict)
    """By group and name, such as ("model", "twin"): a function that takes the registration back."""
    outside: tuple[str, ...] = ()
    """Imported files that are neither the plugin's own nor installed. They are not sent along,
    and changes in them are not seen."""

    @property
    def conf(self) -> Path | None:
        """The folder of its own YAML choices; None without one."""
        folder = self.path / "conf"
        return folder if folder.is_dir() else None


log = logging.getLogger("flwr")  # the logger that `flwr log` shows

_LOADED: dict[str, Plugin] = {}
_loading: list[Plugin] = []
_installed_too = False


def load(place: str | Path, start: Path | None = None) -> Plugin:
    """Import a file, a package's folder, or the plugin of an installed package's entry point.

    A relative path starts at `start`; default: the working directory.
    """
    path = (start or Path()) / os.path.expanduser(place)  # an unknown ~user stays unchanged
    if not path.exists() and str(place) in installed():
        path = installed()[str(place)]
    plugin = _read(Path(os.path.abspath(path)))  # of a link, its own name counts
    there = _LOADED.get(plugin.name)
    if there is None:
        _import(plugin)
        return plugin
    if there.files != plugin.files:
        raise PluginError(
            f"the plugin {path} differs from {there.path}, which is loaded under the same name, "
            f"{plugin.name}: a run goes on with the files that it was started with; leave one out, "
            "or rename it"
        )
    return there


def load_kept(directory: Path) -> None:
    """Load the plugins that `write` has put into a directory, if there are any."""
    for path in _members(directory / FOLDER):
        load(path)


def write(directory: Path) -> None:
    """Copy the plugins of this process into a directory; `load_kept` reads them from there."""
    for name, content in files().items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)


def search(found: Callable[[], bool]) -> None:
    """Load the plugins beside this file, then installed ones, until `found` returns True."""
    if found():
        return
    for path in _findable():
        load(path)
        if found():
            return


def search_installed_too() -> None:
    """Let `search` look at installed packages, too. Devices never call this: only the app counts.

    A run sends these plugins along, so its server and its clients find them beside this file.
    """
    global _installed_too
    _installed_too = True


def installed() -> dict[str, Path]:
    """Return the paths of installed packages' plugins, by the names of their entry points."""
    from importlib.metadata import entry_points  # a fifth of a start: not for --help

    found = {}
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda each: each.name):
        spec = importlib.util.find_spec(point.module)
        if spec is None or spec.origin is None:
            raise PluginError(f"the entry point {point.name} names {point.value}: no such module")
        package = spec.submodule_search_locations
        found[point.name] = Path(next(iter(package)) if package else spec.origin)
    return found


def chosen() -> list[Plugin]:
    """Return the plugins of this process by name: a run sends these along."""
    return [plugin for _, plugin in sorted((_beside() | _LOADED).items())]


def loaded() -> list[Plugin]:
    """Return the imported plugins, in the order of their import."""
    return list(_LOADED.values())


def files() -> dict[str, bytes]:
    """Return the files of all plugins, by their names in the app."""
    return {
        f"{FOLDER}/{name}": content
        for plugin in chosen()
        for name, content in sorted(plugin.files.items())
    }


def is_whole(module: str) -> bool:
    """Return whether all files that a plugin's module needs are part of the code's hash."""
    name = module.removeprefix(f"{__name__}.").partition(".")[0]
    return name in _LOADED and not _LOADED[name].outside


def offer(group: str, name: str, take_back: Callable[[], object]) -> None:
    """Record a registration with the plugin that is being loaded, if there is one."""
    if _loading:
        _loading[-1].offers[group, name] = take_back


def offered(group: str) -> list[str]:
    """Return the names that loaded plugins have registered in a group."""
    return [name for each in loaded() for kind, name in each.offers if kind == group]


def told(error: BaseException) -> str:
    """Describe an error in one line, with the plugin's file and line if it comes from a plugin."""
    where = where_in_plugins(error)
    if is_ours(type(error)) or (where is None and isinstance(error, ValueError | OSError)):
        return str(error)
    said = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return f"the plugin {where}: {said}" if where else said


def where_in_plugins(error: BaseException) -> str | None:
    """Return the plugin file and line in which an error was raised; None if outside of plugins."""
    return next(filter(None, (place_of(error, plugin) for plugin in loaded())), None)


def is_ours(kind: type) -> bool:
    """Return whether a class is nestfl's own; an error of such a class needs no further detail."""
    module = kind.__module__
    package = module.partition(".")[0]
    beside = Path(__file__).parents[1] / package / "__init__.py"
    # Where nestfl is installed, its own package does not lie beside this one.
    return module == __name__ or (package != __name__ and (package == "nestfl" or beside.is_file()))


def place_of(error: BaseException, plugin: Plugin) -> str | None:
    """Return this plugin's file and line in which an error was raised; None if outside of it."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [(frame.filename, frame.lineno) for frame in frames]
    if isinstance(error, SyntaxError) and error.filename:
        places.append((error.filename, error.lineno))
    own = [each for each in places if Path(each[0]).is_relative_to(plugin.path)]
    return f"{own[-1][0]}, line {own[-1][1]}" if own else None


def unload(plugin: Plugin) -> None:
    """Forget a plugin and all its registrations."""
    for take_back in plugin.offers.values():
        take_back()
    _LOADED.pop(plugin.name, None)
    module = f"{__name__}.{plugin.name}"
    for name in [each for each in sys.modules if each == module or each.startswith(f"{module}.")]:
        del sys.modules[name]
    globals().pop(plugin.name, None)


def _read(path: Path) -> Plugin:
    """Return the plugin at a path, not yet loaded."""
    if not path.exists():
        known = ", ".join(installed()) or "none"
        raise PluginError(
            f"the plugin {path} does not exist: expected a Python file, a folder with an "
            f"__init__.py, or the name of an installed one ({known})"
        )
    if path.is_dir():
        if not (path / "__init__.py").is_file():
            raise PluginError(f"the plugin {path} is no package: expected an __init__.py in it")
        parts = _parts(path)
        named = {file.relative_to(path.parent).as_posix(): file for file in parts}
    elif path.suffix == ".py":
        named = {path.name: path}
    else:
        raise PluginError(f"the plugin {path} is no Python file: expected one, such as mine.py")
    name = path.stem if path.is_file() else path.name
    taken = f"{name}.py" in OWN_FILES or (name in globals() and name not in _LOADED)
    if taken or not name.isidentifier() or not _is_shipped(f"{name}.py"):
        raise PluginError(
            f"the plugin {path} cannot be called {name!r}: expected letters, digits and "
            "underscores, no test and no word that nestfl uses itself; rename it, to mine.py say"
        )
    return Plugin(name, path, {n: file.read_bytes() for n, file in named.items() if _is_shipped(n)})


def _parts(folder: Path) -> list[Path]:
    """Return the files of a package, without runs and environments inside it."""
    found = list[Path]()
    for place, folders, names in os.walk(folder):
        if NO_PARTS.intersection(names):
            folders.clear()
        else:
            found += [file for name in names if (file := Path(place, name)).is_file()]
    return sorted(found)


def _is_shipped(name: str) -> bool:
    """Return whether Flower would send a file: no tests, and no hidden files."""
    path = Path(name)
    hidden = any(part.startswith(".") or part == "__pycache__" for part in path.parts)
    test = path.stem.startswith("test_") or path.stem.endswith("_test")
    return path.suffix in SHIPPED and not hidden and not test


def _findable() -> Iterator[Path]:
    """Yield the paths of plugins that can be found without being named."""
    yield from _of_the_app()
    if _installed_too:
        yield from installed().values()


def _of_the_app() -> list[Path]:
    """Return the plugins beside this file, and those that a simulation's server has put on disk."""
    laid_out = os.environ.get(PLACE)
    return [
        *_members(Path(__file__).parent),
        *(_members(Path(laid_out) / FOLDER) if laid_out else ()),
    ]


def _members(folder: Path) -> list[Path]:
    """Return the paths of the plugins in a folder of plugins."""
    there = sorted(folder.iterdir()) if folder.is_dir() else []
    return [
        path
        for path in there
        if (path.suffix == ".py" and path.name not in OWN_FILES) or (path / "__init__.py").is_file()
    ]


@cache
def _beside() -> dict[str, Plugin]:
    """Return the plugins beside this app, by name, loaded or not."""
    found = map(_read, _of_the_app())
    return {plugin.name: plugin for plugin in found}


def _import(plugin: Plugin) -> None:
    """Run a plugin's code; if it fails, undo its import and registrations."""
    module = f"{__name__}.{plugin.name}"
    package = plugin.path.is_dir()
    file = plugin.path / "__init__.py" if package else plugin.path
    inside = [str(plugin.path)] if package else None
    spec = importlib.util.spec_from_file_location(module, file, submodule_search_locations=inside)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[module] = made
    _LOADED[plugin.name] = plugin
    before = set(sys.modules)
    try:
        with _being_loaded(plugin):
            spec.loader.exec_module(made)
    except (Exception, SystemExit) as error:
        unload(plugin)
        raise PluginError(_told(plugin, file, error)) from error
    if not plugin.offers and plugin.conf is None:
        unload(plugin)
        raise PluginError(
            f"the plugin {file} registers nothing: expected a network (@register of models) or a "
            "method (@register_method of strategies.registry)"
        )
    globals()[plugin.name] = made
    plugin.outside = _outside(plugin, before)
    if plugin.outside:
        log.warning(
            "the plugin %s imports %s, which is not sent along: where clients run elsewhere they "
            "need it, too, and what is known of its networks is found anew in each run; files of "
            "its own lie in one folder with it (--plugin FOLDER)",
            plugin.path,
            ", ".join(plugin.outside[:3]),
        )


def _outside(plugin: Plugin, before: Collection[str]) -> tuple[str, ...]:
    """Return the imported module files that are neither the plugin's, nestfl's nor installed."""
    installed = map(Path, (sys.prefix, sys.base_prefix, site.getusersitepackages()))
    homes = [*installed, plugin.path, Path(__file__).parents[1]]
    new = [module for name, module in sys.modules.items() if name not in before]
    files = {str(file) for module in new if (file := getattr(module, "__file__", None))}
    real = filter(os.path.isabs, files)  # torch's `_ops.py` is no file: it stands for a library
    return tuple(sorted(f for f in real if not any(Path(f).is_relative_to(h) for h in homes)))


@contextmanager
def _being_loaded(plugin: Plugin) -> Iterator[None]:
    """Credit registrations to this plugin, and write no bytecode into the user's folder."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    _loading.append(plugin)
    try:
        yield
    finally:
        _loading.pop()
        sys.dont_write_bytecode = before


def _told(plugin: Plugin, file: Path, error: BaseException) -> str:
    """Return an error's text with the plugin's file and line."""
    if isinstance(error, PluginError):
        return str(error)
    where = place_of(error, plugin) or str(file)
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    hint = ""
    if isinstance(error, ImportError):
        hint = (
            "; modules of its own are files in one folder with an __init__.py, which import each "
            "other as `from .blocks import Block`"
        )
    return f"the plugin {where}: {type(error).__name__}: {' '.join(said.split())}{hint}"
