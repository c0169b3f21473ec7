"""Adds the generated pages to the site; `mkdocs build` calls these functions."""

from __future__ import annotations

import posixpath
import re
from functools import cache
from pathlib import PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from reference.code_pages import FOLDER as CODE
from reference.code_pages import code_pages
from reference.command_pages import PAGE as COMMANDS
from reference.command_pages import command_pages
from reference.option_pages import FOLDER as OPTIONS
from reference.option_pages import option_pages
from reference.source import PROJECT

TOP_PAGES = {
    "README.md": "overview.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""Files outside docs/ that are also pages, with their places in the site."""
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages into the navigation."""
    nav: list[Any] = config.nav or []
    nav.append({"Reference": _navigation()})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    for uri, text in {**generated(), **_from_the_top()}.items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links among the project's files to their pages; other links stay as text."""
    return LINK.sub(lambda link: in_the_site(link, page.file.src_uri), markdown)


@cache
def generated() -> dict[str, str]:
    """Return the Markdown of all generated pages, by their places in the site."""
    return {**command_pages(), **option_pages(), **code_pages()}


def _navigation() -> list[dict[str, Any]]:
    return [{"Commands": COMMANDS}, {"Options": _section(OPTIONS)}, {"Code": _section(CODE)}]


def _section(folder: str) -> list[Any]:
    """Return the pages of a folder for the navigation; the first is the section's own."""
    first, *others = [uri for uri in generated() if uri.startswith(f"{folder}/")]
    return [first, *({PurePosixPath(uri).stem: uri} for uri in others)]


def _from_the_top() -> dict[str, str]:
    return {uri: (PROJECT / name).read_text(encoding="utf-8") for name, uri in TOP_PAGES.items()}


def in_the_site(link: re.Match[str], uri: str) -> str:
    """Return a link of the page at `uri` in the form of the site."""
    text, target, anchor = link[1], link[2], link[3] or ""
    written = next((name for name, place in TOP_PAGES.items() if place == uri), f"docs/{uri}")
    meant = posixpath.normpath(posixpath.join(posixpath.dirname(written), target))
    if not target or not (PROJECT / meant).exists():
        return link[0]  # a link inside the page, or to another site
    if meant not in TOP_PAGES and not meant.startswith("docs/"):
        return text
    place = TOP_PAGES.get(meant, meant.removeprefix("docs/"))
    return f"[{text}]({posixpath.relpath(place, posixpath.dirname(uri) or '.')}{anchor})"
