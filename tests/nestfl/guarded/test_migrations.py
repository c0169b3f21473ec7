"""A SuperLink in a virtualenv whose path has spaces."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from flwr.supercore.state.alembic import utils
from sqlalchemy import create_engine, inspect

from nestfl.guarded.migrations import allow_spaces


def test_its_database_is_made_where_the_path_has_spaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a folder, with spaces"
    shutil.copytree(utils.ALEMBIC_DIR, folder)
    monkeypatch.setattr(utils, "ALEMBIC_DIR", folder)
    monkeypatch.setattr(utils, "build_alembic_config", utils.build_alembic_config)  # put back
    engine = create_engine(f"sqlite:///{tmp_path}/a database")
    allow_spaces()
    utils.run_migrations(engine)
    assert {"node", "run", "alembic_version"} <= set(inspect(engine).get_table_names())
