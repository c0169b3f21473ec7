"""Deploys nestfl with the scripts of deploy/, and nginx in front, to be attacked.

Its nodes are a real SuperNode `a`; a node `b` that is online but fetches nothing, so that its
messages wait in the SuperLink; and the attacker's own `m`, with a registered key like the others.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from signal import SIGKILL, SIGTERM

from flwr.app import UserConfigValue
from flwr.common.serde import user_config_to_proto
from flwr.proto.control_pb2 import (
    ListRunsRequest,
    ListRunsResponse,
    StartRunRequest,
    StartRunResponse,
    StopRunRequest,
)
from flwr.proto.fab_pb2 import Fab
from flwr.proto.run_pb2 import Run

from nestfl.guarded.pinned_code import fingerprint, fingerprint_of
from trials.faults.processes import APP, BIN, Process, free_port, listens, wait_until
from trials.security.bundles import bundle
from trials.security.door import Door, Key

NODE_CONFIG = "budget=1.0 partition-id=0 num-partitions=1"
NGINX = shutil.which("nginx", path=os.pathsep.join([os.environ["PATH"], "/usr/sbin"]))


class Site:
    """The processes of one deployment, in a directory of its own, at its own ports.

    The SuperLink is on loopback, for its own user; the proxy shows only the Fleet API; devices pin
    their code.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.state = folder, folder / "state"
        self.public, self.node_port, self.control = free_port(), free_port(), free_port()
        self.processes: dict[str, Process] = {}
        self.env = {
            "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]]),
            "STATE": str(self.state),
            "FLWR_HOME": str(self.state / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "NESTFL_CACHE": str(folder / "cache"),
            "LINK_PORT": str(self.public),
            "CONTROL_PORT": str(self.control),
            "NODE_PORT": str(self.node_port),
            "OMP_NUM_THREADS": "1",
            "PATIENCE": "0",
        }

    @property
    def link(self) -> int:
        """The SuperLink's own port, which its operator uses."""
        return self.control

    def deploy(self, name: str, script: str, *arguments: str, **env: str) -> Process:
        """Start a script of deploy/ that goes on."""
        return self.run(name, str(APP / "deploy" / script), *arguments, **env)

    def start_server(self) -> None:
        """Start the processes that listen on the server's ports."""
        self.deploy("superlink", "superlink.sh")
        self.deploy("proxy", "proxy.sh")

    def start_device(self) -> None:
        """Start node `a`, which runs this checkout, as by default, and a harmless app."""
        code = f"{fingerprint_of(APP)},{fingerprint(self.app)}"
        self.deploy("a", "supernode.sh", "a", f'{NODE_CONFIG} code="{code}"')

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

    def start(self) -> None:
        """Start the deployment, until nodes `a` and `b` are online."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.script("certificates.sh")
        self.script("keys.sh", "a", "b", "m")
        self.start_server()
        for port in {self.public, self.link}:
            wait_until(lambda port=port: listens(port), "the server", 60)  # type: ignore[misc]
        self.script("register.sh")
        self.start_device()
        wait_until(lambda: listens(self.node_port), "node a", 60)
        assert self.bystander.activate(), "node b cannot come online"

    def restart_device(self) -> None:
        """End node `a`, which signs off, and start it again."""
        process = self.processes.pop("a")
        process.send_to_group(SIGTERM)
        with suppress(AssertionError):
            process.end(20)
        process.send_to_group(SIGKILL)
        wait_until(lambda: not listens(self.node_port), "the end of node a", 30)
        self.start_device()
        wait_until(lambda: listens(self.node_port), "node a", 60)

    def stop(self) -> None:
        """Stop all its processes, and those that they have started."""
        for process in self.processes.values():
            process.send_to_group(SIGTERM)
        with suppress(AssertionError):
            wait_until(lambda: all(one.ended for one in self.processes.values()), "the end", 10)
        for process in self.processes.values():
            process.send_to_group(SIGKILL)
            process.end()

    def script(self, name: str, *arguments: str) -> str:
        """Run a script of deploy/ to its end."""
        done = subprocess.run(
            [str(APP / "deploy" / name), *arguments],
            env=os.environ | self.env,
            cwd=self.folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert done.returncode == 0, f"{name}: {done.stdout[-300:]}"
        return done.stdout

    def run(self, name: str, *command: str, **env: str) -> Process:
        log = self.folder / f"{name}.log"
        process = Process(command, log, self.folder, self.env | env)
        self.processes[name] = process
        return process

    def key(self, node: str) -> Key:
        return Key.of(self.state / "nodes" / node)

    @property
    def authority(self) -> Path:
        return self.state / "ca.crt"

    @property
    def operator(self) -> Door:
        """The SuperLink's own user, on the server."""
        return Door(self.link, self.authority)

    @cached_property
    def bystander(self) -> Door:
        """Node `b`."""
        return Door(self.public, self.authority, self.key("b"))

    @cached_property
    def app(self) -> bytes:
        return bundle()

    def submit(self, fab: bytes, **config: UserConfigValue) -> int:
        """Submit a run as the operator does; return its number."""
        return start_run(self.operator, fab, **config)

    def runs(self) -> dict[int, Run]:
        answer = self.operator.post("/v1/control/list-runs", ListRunsRequest())
        return dict(answer.read(ListRunsResponse).run_dict)

    def status(self, run: int) -> str:
        found = self.runs()[run].status
        return f"{found.status}:{found.sub_status}" if found.sub_status else found.status

    def wait_status(self, run: int, status: str, seconds: float = 30) -> None:
        wait_until(lambda: self.status(run).startswith(status), f"a run that is {status}", seconds)

    def stop_run(self, run: int) -> None:
        self.operator.post("/v1/control/stop-run", StopRunRequest(run_id=run))


def start_run(door: Door, fab: bytes, **config: UserConfigValue) -> int:
    """Submit a run of some code; return its number, or 0 if it was refused."""
    asked = StartRunRequest(fab=Fab(content=fab), override_config=user_config_to_proto(config))
    return door.post("/v1/control/start-run", asked).read(StartRunResponse).run_id
