"""Serves a whole tree of nodes on this machine, to try it: a process each, parents first."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import time
from graphlib import TopologicalSorter
from pathlib import Path

import httpx

from inference.serving.certificates import make_certificates, make_token
from inference.serving.node_part import NodePart, is_part, read_facts
from inference.serving.settings import ServeError

SECRETS = ".secrets"
HERE = ("127.0.0.1", "localhost", "::1")
"""Names of this machine in the certificate."""
LONGEST_START = 240.0
"""Seconds that all nodes have to start."""


class Tree:
    """The nodes whose parts are in a folder, each on a port of its own from `port` on."""

    def __init__(self, folder: Path, host: str = "127.0.0.1", port: int = 8443) -> None:
        if host not in HERE:
            raise ServeError(
                f"--listen {host}: a tree is served to this machine only: choose from "
                f"{', '.join(HERE)}, or serve each node's part by itself"
            )
        self.parts = parts_in(folder)
        if port + len(self.parts) > 65536:
            raise ServeError(f"--listen with port {port}: {len(self.parts)} nodes need one each")
        self.folder, self.host = folder, f"[{host}]" if ":" in host else host
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
        """Start a node's process in its own group, so that Ctrl-C reaches only this process."""
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
            if said is not None and said.status_code == 200:  # Ray's proxy starts before the node
                return
            time.sleep(0.1)
        raise ServeError(f"node {name} did not come up within {LONGEST_START:g} seconds")

    def ended(self) -> dict[str, int]:
        """Return the exit codes of the nodes that have ended, by name."""
        codes = {name: process.poll() for name, process in self.processes.items()}
        return {name: code for name, code in codes.items() if code is not None}

    def stop(self) -> None:
        """Stop all nodes, the children first, and wait for them."""
        running = [self.processes[name] for name in reversed(self.parts) if name in self.processes]
        for process in running:
            if process.poll() is None:
                process.terminate()
        for process in running:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def parts_in(folder: Path) -> dict[str, NodePart]:
    """Return the nodes whose parts are in a folder, each after its parents."""
    folders = sorted(folder.iterdir()) if folder.is_dir() else []
    found = {path.name: read_facts(path) for path in folders if is_part(path)}
    if not found:
        raise ServeError(f"{folder} holds no parts of a network: expected what nestfl split wrote")
    for name, facts in found.items():
        for parent in facts.parents:
            if parent not in found:
                raise ServeError(f"{folder} lacks the part of {parent}, which {name} passes on to")
    parents = {name: sorted(facts.parents) for name, facts in found.items()}
    return {name: found[name] for name in TopologicalSorter(parents).static_order()}


def serve_tree(folder: Path, host: str, port: int, half: bool) -> None:
    """Serve all nodes of a folder on this machine until stopped; print an example request.

    When a node dies, the others continue without it, so that the user sees their behaviour.
    """
    tree = Tree(folder, host, port)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        tree.start_all(*(["--half"] if half else []))
        for name in tree.parts:
            print(f"{name}: {tree.url(name)} (process {tree.processes[name].pid})")
        entrance = tree.entrances[0]
        print(
            f"ask {', '.join(tree.entrances)}: token in {tree.token_file}, certificate in "
            f"{tree.authority}\n  curl --cacert {tree.authority} {tree.url(entrance)}/health\n"
            f"Ctrl-C stops all",
            flush=True,
        )
        _watch(tree)
    except KeyboardInterrupt:
        pass
    finally:
        tree.stop()


def _watch(tree: Tree) -> None:
    """Print each node that ends, until the last one has ended."""
    said: set[str] = set()
    while len(said) < len(tree.processes):
        time.sleep(0.5)
        for name, code in tree.ended().items():
            if name not in said:
                print(f"node {name} ended with status {code}", file=sys.stderr, flush=True)
                said.add(name)
    raise ServeError("all nodes have ended")
