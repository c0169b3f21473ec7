from __future__ import annotations

from pathlib import Path

import pytest

from server_app.splitting import Splitter, chain
from tests.support.served import Parts, parts_in, small_run


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def splitter(run: Path) -> Splitter:
    return Splitter(run)


@pytest.fixture(scope="session")
def folder(splitter: Splitter, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The parts of a device at exit 1, an edge at 2 and a cloud at 4."""
    output = tmp_path_factory.mktemp("split") / "parts"
    topology = chain((1, 2, 4), (0.5, 0.5))
    splitter.split(topology, splitter.thresholds(topology), output)
    return output


@pytest.fixture(scope="session")
def parts(folder: Path) -> Parts:
    return parts_in(folder)
