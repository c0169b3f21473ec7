"""Gives all tests, and their processes, the same environment on every machine.

Each worker has one thread, examples have no deadline, since machines are shared, the terminal has
one width and no colours, and the cache of data is not the user's.
"""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

for _name in ("LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(_name, None)
os.environ["COLUMNS"] = "120"

if "PYTEST_XDIST_WORKER" not in os.environ:  # workers have that of the process that started them
    os.environ["NESTFL_CACHE"] = tempfile.mkdtemp(prefix="nestfl-cache-")
    atexit.register(shutil.rmtree, os.environ["NESTFL_CACHE"], ignore_errors=True)

settings.register_profile("nestfl", deadline=None)
settings.load_profile("nestfl")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """On a busy machine small networks spend their time waiting for a second thread."""
    import torch  # here, since not every test needs what takes seconds to import

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of images that is new, and of which the process remembers nothing."""
    from tests.support.image_files import forget_loaded

    folder = tmp_path / "cache"
    monkeypatch.setenv("NESTFL_CACHE", str(folder))
    forget_loaded()
    yield folder
    forget_loaded()


@pytest.fixture
def no_plugins_left() -> Iterator[None]:
    """Forget the plugins that a test has loaded, and what is remembered of their networks."""
    yield
    import plugins
    from models import loading, task
    from strategies.levels import cost

    for plugin in plugins.loaded():
        plugins.unload(plugin)
    for remembered in (loading.mould, task._class_rows, cost.cost, cost._counted, cost.path_costs):
        remembered.cache_clear()
