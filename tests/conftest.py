"""For all tests: one thread a worker, and no deadline for an example, since machines are shared."""

import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import pytest
from hypothesis import settings

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
    from tests.images import forget_loaded

    folder = tmp_path / "cache"
    monkeypatch.setenv("NESTFL_CACHE", str(folder))
    forget_loaded()
    yield folder
    forget_loaded()
