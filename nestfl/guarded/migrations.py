"""Lets Flower's database be made where the path of its package has spaces."""

from __future__ import annotations

from alembic.config import Config
from flwr.supercore.state.alembic import utils
from sqlalchemy.engine import Engine

from nestfl.guarded.patching import replace


def allow_spaces() -> None:
    """Make Alembic take the folder of Flower's migrations as one: it would part it at spaces.

    The SuperLink answered all requests with an internal error there.
    """
    build = utils.build_alembic_config

    def built(engine: Engine) -> Config:
        config = build(engine)
        config.set_main_option("path_separator", "newline")
        return config

    replace(utils, "build_alembic_config", built)
