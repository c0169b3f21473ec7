"""Environment variables by which nestfl's own processes pass values outside of records."""

import secrets

DEVICE = "NESTFL_DEVICE"
"""Set on a deployed device by the process that starts its client app; not set in simulations."""
MEMORY = "NESTFL_MEMORY"
"""Folder of clients' memories; `nestfl run` sets it to a folder in the run's directory."""
STARTED_IN = "NESTFL_STARTED_IN"
"""Directory that a simulation was started in (client_app/__init__.py)."""


def private_ray() -> dict[str, str]:
    """Return variables with which a new Ray accepts only clients that have this token.

    Ray's ports are open on all networks of a machine: without a token, anyone who reaches them can
    run code.
    """
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
