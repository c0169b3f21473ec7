"""The app as Flower bundles it: with the files alone that pyproject.toml names."""

from __future__ import annotations

import tomllib
from pathlib import Path

import grimp

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
