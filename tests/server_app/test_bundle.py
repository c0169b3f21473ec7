"""The app as Flower bundles it: with the files alone that pyproject.toml names."""

from __future__ import annotations

import tomllib
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import grimp
from flwr.cli.build import build_fab_from_files

from nestfl.bundle import app_files

PROJECT = Path(__file__).resolve().parents[2]


def test_the_bundle_has_every_package_that_its_apps_import() -> None:
    tool = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]
    included = {pattern.partition("/")[0] for pattern in tool["flwr"]["app"]["fab-include"]}
    packages = set(tool["importlinter"]["root_packages"]) - {"benchmarks", "tests"}
    graph = grimp.build_graph(*sorted(packages))
    apps = [place.partition(":")[0] for place in tool["flwr"]["app"]["components"].values()]
    needed = {module.partition(".")[0]
              for app in apps for module in graph.find_upstream_modules(app)}  # fmt: skip
    assert {"server_app", "client_app", "strategies", "models"} <= needed
    assert needed <= included


def test_no_module_of_the_app_looks_like_a_test_to_flower_which_leaves_those_out() -> None:
    files = app_files(PROJECT)
    bundle, _ = build_fab_from_files(files)
    with ZipFile(BytesIO(bundle)) as archive:
        sent = set(archive.namelist())
    assert {name for name in files if name.endswith((".py", ".yaml"))} <= sent
