"""`flwr-clientapp` for a device: runs only the code that the device allows.

    python -m nestfl.guarded.client_app PORT PARENT OWN_CODE NODE_CONFIG < TOKEN

Flower unpacks and imports any bundle that a run brings. This process checks the bundle's
fingerprint first. A bundle that is not allowed is never written to disk, and the server is told the
reason.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.cli.install import install_from_fab
from flwr.common.config import get_project_dir, parse_config_args
from flwr.common.constant import APP_DIR
from flwr.supercore.utils import get_flwr_home
from flwr.supernode.runtime import run_clientapp

from nestfl import leave_app
from nestfl.guarded.own_user import LOOPBACK, is_own
from nestfl.guarded.pinned_code import CodeError, allowed_code, check_code
from nestfl.guarded.replacing import replace

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.app.user_config import UserConfig
    from flwr.supercore.fab import Fab
    from flwr.supercore.run import Run

DEVICE = "NESTFL_DEVICE"
"""Tells the run's code that it is on a real device (protocol/environment.py has its name, too)."""


@dataclass
class Gate:
    """Checks the code of a SuperNode's task before the task's code is installed."""

    own: str
    """The fingerprint of this device's checkout."""
    node_config: UserConfig
    """The owner's node config; the one that comes with a task could be another's."""
    task: tuple[Message, Context, Run, Fab] | None = None

    def close(self) -> None:
        """Make Flower ask this gate before it installs a bundle."""
        self.pull_from_flower = run_clientapp.pull_task_input
        replace(run_clientapp, "pull_task_input", self.pull)
        replace(run_clientapp, "install_from_fab", self.install)

    def pull(self, client: Any) -> tuple[Message, Context, Run, Fab]:
        """Pull the task, remember it, and give it the owner's node config."""
        message, context, run, fab = self.pull_from_flower(client)
        context.node_config = self.node_config
        self.task = message, context, run, fab
        return self.task

    def install(self, bundle: bytes, skip_prompt: bool = False) -> Path:
        """Install a bundle, if it is allowed, in a folder that holds nothing else."""
        assert self.task is not None
        _, _, run, fab = self.task
        said = self.node_config.get("code")
        check_code(bundle, allowed_code(None if said is None else str(said), self.own))
        os.environ["FLWR_HOME"] = str(installed(bundle, get_flwr_home() / "bundles"))
        (folder,) = (get_flwr_home() / APP_DIR).iterdir()
        asked = get_project_dir(run.fab_id, run.fab_version, fab.hash_str)
        if asked != folder:  # Flower would import what the server names, not what was checked
            raise CodeError(f"the run names {asked.name!r}, but brings {folder.name!r}")
        return folder


def installed(bundle: bytes, folder: Path) -> Path:
    """Return the folder below `folder` with this bundle installed: alone and complete."""
    home = folder / hashlib.sha256(bundle).hexdigest()
    if not home.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=folder))
        try:
            install_from_fab(bundle, unfinished, skip_prompt=True)
            unfinished.rename(home)
        except OSError:
            if not home.exists():  # another node of this machine may have been faster
                raise
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return home


def in_one_line(record: logging.LogRecord) -> bool:
    """Log refused code without a traceback, as protocol/failures.py does for the run's own code."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, CodeError):
        record.msg, record.args = f"{record.getMessage()}: {type(error).__name__}: {error}", ()
        record.exc_info = record.exc_text = None
    return True


def main() -> None:
    """Run one task."""
    leave_app()
    port, parent, own, said = sys.argv[1:]
    token = sys.stdin.readline().strip()
    if not is_own(int(port)):
        sys.exit(f"port {port} is not this user's")
    os.environ[DEVICE] = "1"
    logging.getLogger("flwr").addFilter(in_one_line)
    Gate(own, parse_config_args([said] if said else None)).close()
    address = f"{LOOPBACK}:{port}"
    run_clientapp.run_clientapp(address, token, insecure=True, parent_pid=int(parent))


if __name__ == "__main__":
    main()
