"""Starts the Ray of one run, which has what the run needs and no more."""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import Any

CLIENTS = "client_app.app"
"""What every worker imports as soon as it starts, while the server makes its plan."""


def start_ray(cpus: int | None) -> None:
    """Start Ray's processes, for all cores if no number is given.

    Their workers are there when work comes, and have imported all that it takes.

    Left out are its dashboard, which no run looks at and which listens at a port, and what would
    add machines: each is a Python that takes a second or more to start.
    """
    os.environ["RAY_preload_python_modules"] = CLIENTS  # noqa: SIM112  (its own spelling)
    import ray
    from ray._private import node, parameter

    parameter.RayParams = partial(  # type: ignore[misc, assignment]
        parameter.RayParams, no_monitor=True
    )
    node.Node.start_api_server = _start_nothing  # type: ignore[method-assign]
    ray.init(num_cpus=cpus, include_dashboard=False, logging_level=logging.ERROR)


def _start_nothing(*_: Any, **__: Any) -> None:
    pass
