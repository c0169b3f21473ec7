"""Starts a Flower simulation of the app in a directory, and leaves nothing of it running."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

import plugins
from nestfl.bundle import BundleError, app_files, copy_app
from nestfl.guarded.own_user import own_port
from nestfl.launching.process_group import ProcessGroup
from protocol.environment import MEMORY, private_ray
from server_app.record.files import MEMORY_FOLDER

STARTUP_SECONDS = 120.0
CONNECTION = "nestfl"
LISTENER = "NESTFL_LISTENER"
"""What tells nestfl/guarded/superlink.py, which is not imported here, its port's descriptor."""
SUPERLINK = [sys.executable, "-P", "-m", "nestfl.guarded.superlink"]
"""Flower's, which without a guard would run what any user of this machine submits."""


class LaunchError(RuntimeError):
    """Flower could not be started."""


@dataclass(frozen=True)
class Simulation:
    """The number of simulated nodes, and the part of this machine that each takes."""

    nodes: int
    cpus_per_client: int = 1
    gpus_per_client: float = 0.0
    workers: int | None = None
    """Clients at a time; as many as the machine has room for if not given."""

    def federation_config(self) -> str:
        settings = {
            "num-supernodes": self.nodes,
            "client-resources-num-cpus": self.cpus_per_client,
            "client-resources-num-gpus": float(self.gpus_per_client),
        }
        if self.workers is not None:
            settings["init-args-num-cpus"] = self.workers * self.cpus_per_client
        return " ".join(f"{key}={value}" for key, value in settings.items())


def check_app(app_dir: Path) -> None:
    """Raise a `LaunchError` where there is no Flower app."""
    try:
        app_files(app_dir)
    except BundleError as error:
        raise LaunchError(f"{error}; run nestfl from its checkout") from None


# `flwr run` alone would find, or leave behind, a SuperLink for all: a stranger's working directory,
# environment and code (its simulated clients import from the SuperLink's directory). So the run has
# a SuperLink and a SuperExec of its own: as fast as letting `flwr run` start them (both start at
# once), and all of them, Ray too, are in one process group that can be ended as a whole.
# `flwr.simulation.run_simulation` needs neither, but takes no run config and builds no FAB.
@contextmanager
def flower_run(
    app_dir: Path,
    run_config: Mapping[str, str | bool],
    simulation: Simulation,
    log: Path,
    check: Callable[[], None],
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the app; yield a process that writes the log and ends when the run has ended.

    While Flower starts, `check` may raise to give it up.
    """
    with (
        _temporary_directory() as home,  # not in the checkout, which may be another user's
        _temporary_directory("/tmp") as ray,  # a short path: Ray's sockets are below it
        log.open("ab") as output,
        ProcessGroup(_environment(Path(home), Path(ray), log.parent), Path(home)) as group,
    ):
        port = _start_superlink(group, Path(home), check)
        # Flower would look through all of a checkout
        copy_app(app_dir, Path(home, "app"), plugins.files())
        _write_toml(Path(home, "run.toml"), run_config)
        Path(home, "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n'
            f'[superlink.{CONNECTION}]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        )
        options = ["--run-config", f"{home}/run.toml"]
        options += ["--federation-config", simulation.federation_config()]
        yield group.start(
            [_script("flwr"), "run", f"{home}/app", CONNECTION, "--stream", *options], output
        )


def _temporary_directory(folder: str | None = None) -> tempfile.TemporaryDirectory[str]:
    """Make one in a folder, or where the system (or TMPDIR) has such things."""
    return tempfile.TemporaryDirectory(prefix="nestfl-", dir=folder, ignore_cleanup_errors=True)


def _start_superlink(group: ProcessGroup, home: Path, check: Callable[[], None]) -> int:
    """Start it, and what takes its tasks; return its port.

    The port is taken here, and is nobody else's at any time: whoever had it could give tasks.
    """
    with own_port(0) as listener, (home / "superlink.log").open("wb") as output:
        port = str(listener.getsockname()[1])
        serve = ["--simulation", "--isolation", "process", "--host", "127.0.0.1", "--port", port]
        number = listener.fileno()
        command, taken = [*SUPERLINK, "--insecure", *serve], {LISTENER: str(number)}
        superlink = group.start(command, output, taken, [number])
        address = f"127.0.0.1:{port}"
        work = ["--runtime-api-address", address, "--parent-pid", str(superlink.pid)]
        group.start([_script("flower-superexec"), "--insecure", *work], output)
    deadline = time.monotonic() + STARTUP_SECONDS
    while not _answers(address) or superlink.poll() is not None:
        if superlink.poll() is not None or time.monotonic() > deadline:
            last_lines = (home / "superlink.log").read_text(errors="replace").splitlines()[-5:]
            raise LaunchError("\n".join(["Flower's SuperLink did not start:", *last_lines]))
        check()
        time.sleep(0.05)
    return int(port)


def _answers(address: str) -> bool:
    try:
        with build_opener(ProxyHandler({})).open(f"http://{address}/health", timeout=1):
            return True
    except (URLError, OSError):
        return False


def _environment(home: Path, ray: Path, run_dir: Path) -> dict[str, str]:
    environment = os.environ | {
        "PATH": _search_path(),
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONUNBUFFERED": "1",
    }
    environment.setdefault(MEMORY, str(run_dir.absolute() / MEMORY_FOLDER))
    if "RAY_ADDRESS" not in environment:  # else Ray would join any cluster that this machine has
        environment["RAY_TMPDIR"] = str(ray)
        environment |= private_ray()
    return environment


def _search_path() -> str:
    """Put this Python's commands first: Flower starts its own by name."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def _script(name: str) -> str:
    found = shutil.which(name, path=_search_path())
    if found is None:
        raise LaunchError(f"the command {name} is missing: is flwr[simulation] installed?")
    return found


def _write_toml(path: Path, values: Mapping[str, str | bool]) -> None:
    """Write values as JSON's strings, which TOML reads; a file needs no quoting for `flwr run`."""
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items()]
    path.write_text("".join(lines), encoding="utf-8")
