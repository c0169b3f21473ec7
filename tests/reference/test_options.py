"""Every group, choice and key of conf/ is in the pages of options, with its comment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from reference.option_pages import CONF, groups, option_pages, plain_type
from reference.source import PROJECT
from reference.yaml_keys import read

PAGES = option_pages()
FILES = sorted(CONF.rglob("*.yaml"))


def keys(values: dict[str, Any], prefix: str = "") -> list[str]:
    """The keys that hold values, as overrides name them."""
    found = []
    for name, value in values.items():
        if isinstance(value, dict) and value:
            found += keys(value, f"{prefix}{name}.")
        elif name != "defaults":
            found.append(f"{prefix}{name}")
    return found


def page_and_prefix(file: Path) -> tuple[str, str]:
    group = file.relative_to(CONF).parts[0]
    if group == "config.yaml":
        return PAGES["reference/options/index.md"], ""
    return PAGES[f"reference/options/{group}.md"], f"{group}."


def test_every_folder_of_conf_has_a_page() -> None:
    folders = sorted(path.name for path in CONF.iterdir() if path.is_dir())
    assert sorted(groups()) == folders
    assert all(f"reference/options/{name}.md" in PAGES for name in folders)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(CONF)))
def test_every_choice_and_every_key_is_listed(file: Path) -> None:
    page, prefix = page_and_prefix(file)
    text = file.read_text()
    values = yaml.safe_load(text) or {}
    if prefix and not file.name.startswith("_"):
        name = file.relative_to(CONF / prefix[:-1]).with_suffix("")
        assert f"`{prefix[:-1]}={name}`" in page
    if text.startswith("# @package _global_"):
        settings = [line for line in text.splitlines() if not line.startswith("#")]
        assert "\n".join(settings).strip("\n") in page
    elif list(values) != ["defaults", "name"]:  # which its choice says
        missing = [key for key in keys(values) if f"| `{prefix}{key}` |" not in page]
        assert missing == []


def test_every_choice_says_what_it_is() -> None:
    assert [file for file in FILES if file.name[0] != "_" and not read(file).comment] == []


def test_comments_go_with_the_key_that_they_are_about(tmp_path: Path) -> None:
    file = tmp_path / "made.yaml"
    file.write_text(
        "# What it is,\n# in two lines.\n"
        "defaults: [_shared, _self_]\n\n"
        "first: 1e-4   # behind it,\n"
        "              # and on\n"
        "# Above it.\n"
        "second: [1, 2]\n"
        "third:        # of both\n"
        "  inner: null # the inner one\n"
        "  other: '#1'\n"
    )
    made = read(file)
    assert (made.comment, made.bases, made.is_global) == (
        "What it is, in two lines.",
        ["_shared"],
        False,
    )
    assert [(key.name, key.value, key.comment) for key in made.keys] == [
        ("first", "1e-4", "behind it, and on"),
        ("second", "[1, 2]", "Above it."),
        ("third", "", "of both"),
        ("third.inner", "null", "the inner one"),
        ("third.other", "'#1'", ""),
    ]


def test_a_key_has_the_type_and_the_docstring_of_its_field() -> None:
    rows = {row.split("`")[1]: row for row in PAGES["reference/options/strategy.md"].splitlines()
            if row.startswith("| `strategy.")}  # fmt: skip
    assert "| `all` | all, holders |" in rows["strategy.feddyn_clients"]
    assert "FedDyn's; 0 is without it." in rows["strategy.alpha"]


@pytest.mark.parametrize(
    ("annotation", "plain"),
    [
        ("int", "whole number"),
        ("float | None", "number, null"),
        ("tuple[int, ...] | None", "list of whole numbers, null"),
        ("tuple[tuple[float, ...], ...]", "list of lists of numbers"),
        ("Literal['own', 'global']", "own, global"),
        ("Mapping[str, Any]", ""),
    ],
)
def test_types_are_told_in_the_words_of_yaml(annotation: str, plain: str) -> None:
    assert plain_type(annotation) == plain


def test_the_pages_are_made_without_torch() -> None:
    script = "import sys; from reference.hook import generated; generated(); print(*sys.modules)"
    made = subprocess.run(
        [sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    assert "torch" not in made.stdout.split()
