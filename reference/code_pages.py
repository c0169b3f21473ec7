"""Makes the pages of the code: one for each package, with its public classes and functions.

mkdocstrings fills them in from the docstrings and signatures.
"""

from __future__ import annotations

import griffe

from reference.source import find, first_sentence, modules_of, packages, packages_below
from reference.tables import cell, table

FOLDER = "reference/code"
OWN_NAMES = """::: {path}
    options:
      show_root_heading: false
      show_root_toc_entry: false
      members: {members}"""


def code_pages() -> dict[str, str]:
    """Return the Markdown of each page, by its place in the site."""
    below = [name for package in packages() for name in packages_below(package)]
    names = [name for name in below if modules_of(name) or own_names(name)]
    rows = [(f"[`{name}`]({name}.md)", cell(first_sentence(find(name)))) for name in names]
    index = f"# Packages\n\n{table(('package', 'what it holds'), rows)}"
    return {f"{FOLDER}/index.md": index, **{f"{FOLDER}/{name}.md": page_of(name) for name in names}}


def page_of(package: str) -> str:
    """Return a package's page: its modules at a glance, then each of them."""
    modules = modules_of(package)
    rows = [(f"[`{each.name}`][{each.path}]", cell(first_sentence(each))) for each in modules]
    parts = [f"# {package}", _filled_in(package, own_names(package))]
    if rows:
        parts.append(table(("module", "what it holds"), rows))
    parts += [_filled_in(each.path, None) for each in modules]
    return "\n\n".join(parts)


def own_names(package: str) -> list[str]:
    """Return the public classes and functions that a package itself defines."""
    members = find(package).members.values()
    made = [each for each in members if isinstance(each, griffe.Class | griffe.Function)]
    return [each.name for each in made if not each.name.startswith("_")]


def _filled_in(path: str, members: list[str] | None) -> str:
    """Return mkdocstrings' directive: for a whole module, or some members without a heading."""
    if members is None:
        return f"::: {path}"
    return OWN_NAMES.format(path=path, members=members)
