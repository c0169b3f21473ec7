from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from flwr.supercore.state.alembic import utils
from sqlalchemy import create_engine, inspect

from nestfl.guarded.database import allow_spaces


@pytest.mark.parametrize("folder", ["plain", "with a space", "a, comma"])
def test_the_database_has_its_tables_wherever_flower_is_installed(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / folder
    shutil.copytree(utils.ALEMBIC_DIR, installed)
    monkeypatch.setattr(utils, "ALEMBIC_DIR", installed)
    monkeypatch.setattr(utils, "build_alembic_config", utils.build_alembic_config)  # to undo this:
    allow_spaces()
    engine = create_engine(f"sqlite:///{tmp_path}/superlink.db")
    utils.run_migrations(engine)
    assert {"node", "run"} <= set(inspect(engine).get_table_names())
