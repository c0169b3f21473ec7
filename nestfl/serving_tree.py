"""A whole tree of nodes on this machine, to try it: one process for each, the parents first."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path

import httpx

from inference.serving.certificates import make_certificates, make_token
from inference.serving.node_part import NodePart, is_part, read_facts
from inference.serving.settings import ServeError

SECRETS = ".secrets"
LONGEST_START = 240.0
"""Seconds that all nodes have to come up."""


class Tree:
    """The nodes whose parts are in a folder, each on a port of its own from `port` on."""

    def __init__(self, folder: Path, host: str = "127.0.0.1", port: int = 8443) -> None:
        folders = (
            sorted(path for path in folder.iterdir() if is_part(path)) if folder.is_dir() else []
        )
        if not folders:
            raise ServeError(
                f"{folder} holds no parts of a network: expected what nestfl split wrote"
            )
        self.folder, self.host = folder, host
        self.parts: dict[str, NodePart] = {path.name: read_facts(path) for path in folders}
        self.ports = {name: port + number for number, name in enumerate(self.parts)}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        secrets = folder / SECRETS
        self.certificate, self.key, self.authority = make_certificates(secrets)
        self.token_file = secrets / "token"
        self.token = make_token(self.token_file)

    def url(self, name: str) -> str:
        return f"https://{self.host}:{self.ports[name]}"

    @property
    def entrances(self) -> list[str]:
        """The nodes that read inputs."""
        return [name for name, facts in self.parts.items() if 0 in facts.takes]

    def command(self, name: str, *options: str) -> list[str]:
        """Return the command that serves a node."""
        parents = [f"--parent={each}={self.url(each)}" for each in self.parts[name].parents]
        return [
            *(sys.executable, "-m", "nestfl", "serve", str(self.folder / name)),
            *("--listen", f"{self.host}:{self.ports[name]}"),
            *("--cert", str(self.certificate), "--key", str(self.key), "--ca", str(self.authority)),
            *("--token-file", str(self.token_file), "--threads", "1"),
            *parents,
            *options,
        ]

    def start(self, name: str, *options: str) -> None:
        """Start a node's process, in a group of its own, so that Ctrl-C comes through us."""
        self.processes[name] = subprocess.Popen(
            self.command(name, *options), start_new_session=True, env=os.environ.copy()
        )

    def start_all(self, *options: str) -> None:
        """Start all nodes, and wait until they answer."""
        for name in self.parts:
            self.start(name, *options)
        for name in self.parts:
            self.wait_for(name)

    def wait_for(self, name: str) -> None:
        """Wait until a node answers."""
        context = ssl.create_default_context(cafile=self.authority)
        end = time.monotonic() + LONGEST_START
        while time.monotonic() < end:
            if (code := self.processes[name].poll()) is not None:
                raise ServeError(f"node {name} ended with status {code}")
            try:
                said = httpx.get(f"{self.url(name)}/health", verify=context, trust_env=False)
            except httpx.HTTPError:
                said = None
            if said is not None and said.status_code == 200:  # Ray's proxy is up before the node
                return
            time.sleep(0.1)
        raise ServeError(f"node {name} did not come up within {LONGEST_START:g} seconds")

    def stop(self) -> None:
        """Stop all nodes, the children first, and wait for them."""
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def serve_tree(folder: Path, listen: str, half: bool) -> None:
    """Serve all nodes of a folder on this machine, and say how to ask, until stopped."""
    host, _, port = listen.rpartition(":")
    tree = Tree(folder, host or "127.0.0.1", int(port))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        tree.start_all(*(["--half"] if half else []))
        for name in tree.parts:
            print(f"{name}: {tree.url(name)}")
        entrance = tree.entrances[0]
        print(
            f"ask {', '.join(tree.entrances)}: token in {tree.token_file}, certificate in "
            f"{tree.authority}\n  curl --cacert {tree.authority} {tree.url(entrance)}/health\n"
            f"Ctrl-C stops all",
            flush=True,
        )
        while all(process.poll() is None for process in tree.processes.values()):
            time.sleep(0.5)
    except KeyboardInterrupt:
        pass
    finally:
        tree.stop()
