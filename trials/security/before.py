"""Deploys Flower's own commands with all APIs on one port, for the column `before`.

nestfl was deployed in this way until commit f0760e5.
"""

from __future__ import annotations

from trials.faults.processes import free_port, listens, wait_until
from trials.security.site import NODE_CONFIG, Site


class Before(Site):
    """One port for nodes, operators and the SuperLink's own processes."""

    name = "before"

    @property
    def link(self) -> int:
        return self.public

    def start_server(self) -> None:
        state = self.state
        self.env["CONTROL_PORT"] = str(self.public)  # for the operator's scripts of today
        self.run(
            "superlink",
            *("flower-superlink", "--host", "127.0.0.1", "--port", str(self.public)),
            *("--ssl-ca-certfile", str(state / "ca.crt")),
            *("--ssl-certfile", str(state / "server.pem")),
            *("--ssl-keyfile", str(state / "server.key")),
            *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
            *("--database", str(state / "superlink.db")),
        )

    def start_device(self) -> None:
        state = self.state
        self.run(
            "a",
            *("flower-supernode", "--superlink", f"127.0.0.1:{self.public}"),
            *("--root-certificates", str(state / "ca.crt")),
            *("--auth-supernode-private-key", str(state / "nodes" / "a")),
            *("--node-config", NODE_CONFIG, "--port", str(self.node_port)),
        )

    def start_simulation(self) -> int:
        port = free_port()
        self.run(
            "simulation",
            *("flower-superlink", "--insecure", "--simulation", "--isolation", "process"),
            *("--host", "127.0.0.1", "--port", str(port)),
        )
        wait_until(lambda: listens(port), "the simulation", 60)
        return port
