"""The app as Flower bundles it: the files that pyproject.toml names; and as its Hub takes it."""

from __future__ import annotations

import os
import re
import tomllib
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import grimp
import yaml
from flwr.cli.app_cmd.publish import _validate_description, _validate_files
from flwr.cli.build import build_fab_from_files
from flwr.cli.utils import filter_paths_for_publish, validate_project_name
from packaging.specifiers import SpecifierSet

from nestfl.bundle import app_files
from server_app.config.composing import compose

PROJECT = Path(__file__).resolve().parents[2]
TOML = tomllib.loads((PROJECT / "pyproject.toml").read_text())
README = (PROJECT / "README.md").read_text()


def test_the_bundle_has_every_package_that_its_apps_import() -> None:
    tool = TOML["tool"]
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


# --- Flower's Hub ----------------------------------------------------------------------------


def published() -> list[Path]:
    """The files that `flwr app publish` would send of a checkout."""
    ignored = {line.strip("/") for line in (PROJECT / ".gitignore").read_text().split()}
    files: dict[str, Path | bytes] = {}
    for place, folders, names in os.walk(PROJECT):
        folders[:] = [name for name in folders if name not in ignored | {".git"}]
        found = [Path(place, name) for name in names]
        files |= {file.relative_to(PROJECT).as_posix(): file for file in found}
    return [file for file in filter_paths_for_publish(files).values() if isinstance(file, Path)]


def test_the_hub_takes_the_files_and_the_description() -> None:
    """At most 1,000 text files of at most 1 MB, 10 MB in all, and up to 200 letters."""
    _validate_files(published())
    _validate_description(TOML["project"]["description"])
    assert len(TOML["project"]["description"]) <= 200
    validate_project_name(TOML["project"]["name"], "name")


def test_the_readme_says_how_many_nodes_the_app_is_for_and_what_data_it_begins_with() -> None:
    default = compose("")
    assert f"num-supernodes={default.fleet.clients}" in README
    assert default.dataset.name in README


def test_the_citation_and_the_badges_say_what_the_project_says() -> None:
    project = TOML["project"]
    citation = yaml.safe_load((PROJECT / "CITATION.cff").read_text())
    assert (citation["title"], citation["version"]) == (project["name"], project["version"])
    assert citation["license"] == project["license"]
    assert citation["abstract"] == project["description"]
    badges = re.findall(r"docs/images/badges/(\w+)\.svg", README)
    said = {name: re.search(r"<title>\w+: (.*)</title>",
                           (PROJECT / f"docs/images/badges/{name}.svg").read_text())
            for name in badges}  # fmt: skip
    told = {name: found[1] for name, found in said.items() if found}
    assert told["licence"] == project["license"]
    python = told["python"].removesuffix(" or newer")
    assert SpecifierSet(project["requires-python"]) == SpecifierSet(f">={python}")
    (flower,) = [each for each in project["dependencies"] if each.startswith("flwr[")]
    accepted = SpecifierSet(flower.partition("]")[2])
    first, last = told["flower"].split(" to ")
    before, after = (f"1.{int(version.split('.')[1]) + step}" for version, step in
                     ((first, -1), (last, 1)))  # fmt: skip
    assert [accepted.contains(f"{each}.0") for each in (before, first, last, after)] == [
        *(False, True, True, False)
    ]


def test_ci_and_the_hooks_call_the_makefile_and_nothing_else() -> None:
    jobs = yaml.safe_load((PROJECT / ".github/workflows/ci.yml").read_text())["jobs"]
    steps = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    hooks = yaml.safe_load((PROJECT / ".pre-commit-config.yaml").read_text())["repos"]
    entries = [hook["entry"] for repository in hooks for hook in repository["hooks"]]
    assert steps == entries == ["make lint", "make test"]
