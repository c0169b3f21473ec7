"""Variables in which nestfl's processes tell each other what is no record's business."""

MEMORY = "NESTFL_MEMORY"
"""The folder for what clients remember; `nestfl run` sets it to one in the run's directory."""
STARTED_IN = "NESTFL_STARTED_IN"
"""The directory that a simulation was started in (client_app/__init__.py)."""
