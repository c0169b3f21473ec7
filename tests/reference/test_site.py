"""The site builds without a warning, and every public class and function is in it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from reference.code_pages import code_pages
from reference.hook import LINK, in_the_site
from reference.source import PROJECT, packages


def public_names() -> set[str]:
    """The public classes and functions of all packages, as their source has them."""
    found = set()
    for package in packages():
        for file in sorted((PROJECT / package).rglob("*.py")):
            module = ".".join(file.relative_to(PROJECT).with_suffix("").parts)
            if any(part.startswith("_") and part != "__init__" for part in module.split(".")):
                continue
            for node in ast.parse(file.read_text()).body:
                if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    continue
                if not node.name.startswith("_"):
                    found.add(f"{module.removesuffix('.__init__')}.{node.name}")
    return found


def inventory(site: Path) -> set[str]:
    """Return the names that can be looked up in the site, by dotted path."""
    lines = (site / "objects.inv").read_bytes().split(b"\n", 4)
    return {line.split()[0] for line in zlib.decompress(lines[4]).decode().splitlines()}


def test_the_site_builds_without_a_warning_and_has_every_public_name(tmp_path: Path) -> None:
    site = tmp_path / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        cwd=PROJECT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(public_names() - inventory(site)) == []
    metrics = (site / "reference/code/server_app.record.html").read_text()
    assert "share of the channels; a list has one for each stage" in metrics  # a comment
    loaded = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"?(?:https?:)?//[^>]*>")
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > len(code_pages())
    assert [found[0] for page in pages if (found := loaded.search(page.read_text()))] == []


@pytest.mark.parametrize(
    ("page", "link", "in_site"),
    [
        ("deploy.md", "[a](security.md#locks)", "[a](security.md#locks)"),
        ("deploy.md", "[the README](../README.md#set-up)", "[the README](overview.md#set-up)"),
        ("strategies/nefl.md", "[b](../../CHANGELOG.md)", "[b](../changelog.md)"),
        ("overview.md", "[c](docs/strategies/nefl.md)", "[c](strategies/nefl.md)"),
        ("overview.md", "[d](docs/images/run.svg)", "[d](images/run.svg)"),
        ("overview.md", "[the licence](LICENSE)", "the licence"),
        ("deploy.md", "[its settings](../conf/config.yaml)", "its settings"),
        ("deploy.md", "[f](#below)", "[f](#below)"),
        ("deploy.md", "[g](https://flower.ai)", "[g](https://flower.ai)"),
        ("deploy.md", "[h](no-such-page.md)", "[h](no-such-page.md)"),
    ],
)
def test_links_among_the_projects_files_lead_to_pages(page: str, link: str, in_site: str) -> None:
    assert LINK.sub(lambda found: in_the_site(found, page), link) == in_site
