"""Federated learning of one network on devices that cannot all hold it.

`import nestfl` makes the app's own packages importable, such as `models` and `strategies`. Their
names are short, and a project may have folders of the same names: from then on nestfl's are found
first, whatever is on `sys.path`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

VARIABLE = "NESTFL_APP"
"""Names the copy of the app that the processes of a simulation import."""
PACKAGES = (
    *("client_app", "data", "inference", "models", "plugins", "protocol", "server_app"),
    *("strategies", "training"),
)
"""The app's packages: the top level of what a run sends to its clients."""


def _app_folder() -> str:
    """Return the folder of the app: a simulation's copy, or the wheel's, or the checkout."""
    here = os.path.dirname(os.path.realpath(__file__))
    inside = os.path.join(here, "_app")  # setup.py puts it into the wheel
    return os.environ.get(VARIABLE) or (inside if os.path.isdir(inside) else os.path.dirname(here))


APP = _app_folder()


class AppFinder:
    """Finds the packages of the app in its folder.

    An entry of `sys.path` would not do: Ray puts its caller's folder before all others.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [APP]) if name in PACKAGES else None


_finder = AppFinder()


def use_app() -> None:
    """Let the app's packages be found, unless this process has imported another copy of it."""
    for name in PACKAGES:
        if (module := sys.modules.get(name)) is None:
            continue
        folder = _folder(module)
        if _is_app(os.path.dirname(folder)):
            return
        raise ImportError(
            f"{folder} was imported as {name!r}, which is a package of nestfl: expected `import "
            f"nestfl` before it, or another name for that folder"
        )
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def leave_app() -> None:
    """Let the app's packages not be found: on a guarded device a run's code finds its own alone."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    sys.path[:] = [entry for entry in sys.path if entry != APP]


def _folder(module: ModuleType) -> str:
    """Return where a package lies, or a module that is a file."""
    places = list(getattr(module, "__path__", ())) or [getattr(module, "__file__", None) or "?"]
    return os.path.abspath(places[0])


def _is_app(folder: str) -> bool:
    return all(os.path.isdir(os.path.join(folder, name)) for name in PACKAGES)


use_app()
