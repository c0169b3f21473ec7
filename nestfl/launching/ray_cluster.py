"""Connects a run to an existing Ray cluster, whose workers get the app and the plugins."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path

import plugins
from nestfl.bundle import copy_app

PATIENCE = 5.0
"""Seconds that the cluster has to answer."""
SENT = "sent"
"""Name of the folder of files that are sent to the cluster."""


def cluster() -> str | None:
    """Return the address of the cluster for runs; None if each run starts its own Ray."""
    return os.environ.get("RAY_ADDRESS") or None


def require_cluster() -> None:
    """Raise if a named cluster does not answer: Ray would try for many minutes."""
    host, colon, port = (cluster() or "").rpartition(":")
    if not colon or "/" in host or not port.isdigit():
        return  # Ray finds `auto` itself, and reads the other forms
    try:
        socket.create_connection((host.strip("[]"), int(port)), PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"no Ray cluster answers at RAY_ADDRESS={cluster()} ({error}): start it (`ray start "
            "--head`), or unset RAY_ADDRESS for a Ray of the run's own"
        ) from None


def join_cluster(app: Path, folder: Path) -> None:
    """Connect this process to the cluster; its workers import a copy of the app and plugins.

    Ray copies them to each machine. Runs with other code at the same time have other workers.
    """
    import ray

    sent = folder / SENT
    copy_app(app, sent, plugins.files())
    (sent / ".gitignore").unlink(missing_ok=True)  # Ray would leave out the files that it names
    ray.init(cluster(), logging_level=logging.ERROR, runtime_env={"working_dir": str(sent)})
