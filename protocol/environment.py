"""Variables in which nestfl's processes tell each other what is no record's business."""

import secrets

DEVICE = "NESTFL_DEVICE"
"""Set on a deployed device, by what starts its client app; simulated clients have none."""
MEMORY = "NESTFL_MEMORY"
"""The folder for what clients remember; `nestfl run` sets it to one in the run's directory."""
STARTED_IN = "NESTFL_STARTED_IN"
"""The directory that a simulation was started in (client_app/__init__.py)."""


def private_ray() -> dict[str, str]:
    """Return what makes a Ray that is started with it answer only to who has this token.

    Without, whoever reaches its ports, which are open on all of a machine's networks, runs code.
    """
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
