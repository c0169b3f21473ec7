"""Lets Flower create its database if the path of its package has spaces."""

from __future__ import annotations

from alembic.config import Config
from flwr.supercore.state.alembic import utils
from sqlalchemy.engine import Engine

from nestfl.guarded.replacing import replace


def allow_spaces() -> None:
    """Make Alembic take the path of Flower's migrations as one: it would split it at spaces.

    The SuperLink then answered all requests with an internal error.
    """
    build = utils.build_alembic_config

    def built(engine: Engine) -> Config:
        config = build(engine)
        config.set_main_option("path_separator", "newline")
        return config

    replace(utils, "build_alembic_config", built)
