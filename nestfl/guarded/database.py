"""The SuperLink's database, also where Flower is installed below a folder with a space in its name.

Flower names the folders of its database's tables to Alembic with spaces between them: one whose
path has a space is not found, no table is made, and every request ends in an internal server error.
"""

from __future__ import annotations

import os

from alembic.config import Config
from flwr.supercore.state.alembic import utils
from sqlalchemy.engine import Engine

from nestfl.guarded.flower import replace


def allow_spaces() -> None:
    """Name the same folders with the separator that paths have."""
    by_flower = utils.build_alembic_config

    def build(engine: Engine) -> Config:
        config = by_flower(engine)
        folders = [utils.ALEMBIC_DIR / "versions", *utils._version_locations]
        config.set_main_option("path_separator", "os")
        config.set_main_option("version_locations", os.pathsep.join(map(str, folders)))
        return config

    replace(utils, "build_alembic_config", build)
