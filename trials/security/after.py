"""Deploys nestfl with the scripts of deploy/ and nginx in front, for the column `after`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from nestfl.guarded.pinned_code import fingerprint, fingerprint_of
from trials.faults.processes import APP, Process, free_port, listens, wait_until
from trials.security.site import NODE_CONFIG, Site

NGINX = shutil.which("nginx", path=os.pathsep.join([os.environ["PATH"], "/usr/sbin"]))


class After(Site):
    """The SuperLink on loopback, for its own user; only the Fleet API in front; pinned code."""

    name = "after"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.control = free_port()
        self.env["CONTROL_PORT"] = str(self.control)

    @property
    def link(self) -> int:
        return self.control

    def deploy(self, name: str, script: str, *arguments: str, **env: str) -> Process:
        return self.run(name, str(APP / "deploy" / script), *arguments, **env)

    def start_server(self) -> None:
        self.deploy("superlink", "superlink.sh")
        self.deploy("proxy", "proxy.sh")

    def start_device(self) -> None:
        """Start a device that runs this checkout, as by default, and a harmless app."""
        code = f"{fingerprint_of(APP)},{fingerprint(self.app)}"
        self.deploy("a", "supernode.sh", "a", f'{NODE_CONFIG} code="{code}"')

    def start_simulation(self) -> int | None:
        """Return no port: `nestfl run` has no SuperLink."""
        return None

    def second_proxy(self) -> int:
        """Start a proxy that asks for client certificates, too; return its port."""
        state, port = self.folder / "second", free_port()
        state.mkdir(mode=0o700)
        for name in ("ca.crt", "server.pem", "server.key"):
            shutil.copy(self.state / name, state / name)
        env = {"STATE": str(state), "LINK_PORT": str(port), "CLIENT_CERTIFICATES": "on"}
        self.deploy("second", "proxy.sh", **env)
        wait_until(lambda: listens(port), "the second proxy", 30)
        return port
