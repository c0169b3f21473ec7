"""No file of a run's bundle is written or imported before the bundle is allowed."""

from __future__ import annotations

import hashlib
import logging
import os
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.cli.build import build_fab_from_files
from flwr.supernode.runtime import run_clientapp

from nestfl.guarded.client_app import Gate, in_one_line, installed
from nestfl.guarded.pinned_code import CodeError, fingerprint
from nestfl.guarded.replacing import replace

PROJECT = b"""
[project]
name = "small"
version = "1.0"
[tool.flwr.app]
publisher = "us"
[tool.flwr.app.components]
serverapp = "app:server"
clientapp = "app:client"
"""
BUNDLE = build_fab_from_files({"pyproject.toml": PROJECT, "app.py": b"client = 1"})[0]
EVIL = build_fab_from_files({"pyproject.toml": PROJECT, "app.py": b"client = 2"})[0]
NAME = f"us.small.1.0.{hashlib.sha256(BUNDLE).hexdigest()[:8]}"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    return tmp_path


def gate(bundle: bytes, node_config: dict[str, Any], **said: str) -> Gate:
    """The gate of a device with this bundle's code, when a task of a run has come."""
    named = {"fab_id": "us/small", "fab_version": "1.0"} | said
    hash_str = named.pop("hash_str", hashlib.sha256(bundle).hexdigest())
    lies = {"code": "any"}  # of whoever gives the task
    task: Any = (
        None,
        SimpleNamespace(node_config=lies),
        SimpleNamespace(**named),
        SimpleNamespace(hash_str=hash_str),
    )
    return Gate(fingerprint(BUNDLE), node_config, task)


def files(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def test_the_code_of_the_devices_own_checkout_is_installed_alone(home: Path) -> None:
    folder = gate(BUNDLE, {}).install(BUNDLE)
    assert folder.name == NAME
    assert files(folder) == ["app.py", "pyproject.toml"]
    assert (folder / "app.py").read_text() == "client = 1"
    assert Path(os.environ["FLWR_HOME"]) == home / "bundles" / hashlib.sha256(BUNDLE).hexdigest()


def test_other_code_is_refused_and_never_on_disk(home: Path) -> None:
    with pytest.raises(CodeError, match="this device does not run the code"):
        gate(EVIL, {}).install(EVIL)
    assert files(home) == []


def test_code_that_the_node_config_names_is_installed_and_its_own_is_not() -> None:
    config = {"code": fingerprint(EVIL)}
    assert gate(EVIL, config).install(EVIL).is_dir()
    with pytest.raises(CodeError, match="this device does not run the code"):
        gate(BUNDLE, config).install(BUNDLE)


def test_any_code_is_installed_where_the_device_says_so() -> None:
    assert gate(EVIL, {"code": "any"}).install(EVIL).is_dir()


@pytest.mark.parametrize(
    "said",
    [
        {"fab_id": "us/other"},
        {"fab_version": "1.0/../../../../elsewhere/us.small.1.0"},
        {"hash_str": "f" * 64},
    ],
)
def test_what_is_imported_is_what_was_checked(said: dict[str, str]) -> None:
    """Flower goes by the names that the server gives, to whatever is in that folder."""
    with pytest.raises(CodeError, match="the run names"):
        gate(BUNDLE, {}, **said).install(BUNDLE)


def test_the_run_is_told_the_owners_node_config_and_no_other() -> None:
    own = {"data": "/photos"}
    device = gate(BUNDLE, own)
    task: Any = device.task
    device.pull_from_flower = lambda client: task
    _, context, _, _ = device.pull(None)
    assert context.node_config == own


def test_a_bundle_that_was_planted_under_the_same_short_name_is_not_used(home: Path) -> None:
    """Flower's folders have 8 digits of a hash, and it takes one that is there as it is."""
    planted = home / "apps" / NAME
    planted.mkdir(parents=True)
    (planted / "app.py").write_text("evil")
    assert (gate(BUNDLE, {}).install(BUNDLE) / "app.py").read_text() == "client = 1"


def test_an_installation_is_whole_or_not_there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> Path:
        raise OSError(28, "No space left on device")

    folder = home / "bundles"
    with monkeypatch.context() as patched:
        patched.setattr("nestfl.guarded.client_app.install_from_fab", full)
        with pytest.raises(OSError, match="No space left"):
            installed(BUNDLE, folder)
    assert list(folder.iterdir()) == []
    assert installed(BUNDLE, folder) == installed(BUNDLE, folder)


def test_a_flower_without_the_place_for_a_gate_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"has no .*run_clientapp.no_such_function"):
        replace(run_clientapp, "no_such_function", print)


def test_refused_code_is_one_line_of_the_devices_log_and_all_else_has_its_traceback() -> None:
    log, written = logging.Logger("of the test"), StringIO()
    log.addHandler(logging.StreamHandler(written))
    log.addFilter(in_one_line)
    for error in (CodeError("not 100 % of it"), KeyError("x")):
        log.error("%s raised an exception", "ClientApp", exc_info=error)
    assert written.getvalue() == (
        "ClientApp raised an exception: CodeError: not 100 % of it\n"
        "ClientApp raised an exception\nKeyError: 'x'\n"
    )
