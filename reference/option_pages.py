"""Makes the pages of all options: every group of conf/, its choices, and their keys."""

from __future__ import annotations

import re
from pathlib import Path

from reference.fields import Field, config_fields, method_fields
from reference.source import PROJECT
from reference.tables import block, cell, code, table
from reference.yaml_keys import ConfFile, Key, read

CONF = PROJECT / "conf"
FOLDER = "reference/options"
KEY_HEADS = ("key", "default", "takes", "what it is")
WORDS = {
    "None": "null",
    "bool": "true or false",
    "float": "number",
    "int": "whole number",
    "str": "text",
}

INTRODUCTION = """# Options

A run is made of choices and of values. `strategy=heterofl` chooses `conf/strategy/heterofl.yaml`,
and `train.lr=0.05` changes one value. Every command that takes `KEY=VALUE` takes all that is listed
here. An unknown key or choice is answered at once, with those that there are.
"""


def option_pages() -> dict[str, str]:
    """Return the Markdown of each page, by its place in the site."""
    base = read(CONF / "config.yaml")
    return {
        f"{FOLDER}/index.md": _index(base),
        **{f"{FOLDER}/{group}.md": _group_page(group, base.chosen[group]) for group in groups()},
    }


def groups() -> list[str]:
    """Return the groups of conf/ in the order in which a run takes them."""
    return list(read(CONF / "config.yaml").chosen)


def _index(base: ConfFile) -> str:
    rows = []
    for group in groups():
        chosen = base.chosen[group]
        default = code(f"{group}={chosen}") if chosen != "None" else "none"
        rows.append((f"[`{group}`]({group}.md)", default, cell(_about(group))))
    return "\n\n".join(
        [
            INTRODUCTION.strip(),
            "## Groups",
            table(("group", "default", "what is chosen"), rows),
            "## Keys of every run",
            _key_table(base, "", config_fields(), {}),
        ]
    )


def _about(group: str) -> str:
    """Return the comment on a group in conf/config.yaml, behind its default."""
    text = (CONF / "config.yaml").read_text(encoding="utf-8")
    told = re.search(rf"^  - {group}: \S+\s+# (.*)$", text, re.MULTILINE)
    return f"{told[1][0].upper()}{told[1][1:]}." if told else ""


def _group_page(group: str, default: str) -> str:
    files = [read(path) for path in sorted((CONF / group).rglob("*.yaml"))]
    choices = [file for file in files if not file.name.startswith("_")]
    shared = [file for file in files if file.name.startswith("_")]
    parts = [f"# {group}", _about(group)]
    rows = [(_choice(group, file, default), cell(file.comment)) for file in choices]
    parts += ["## Choices", table(("choice", "what it is"), rows)]
    for file in (*shared, *choices):
        if said := _keys_of(group, file):
            parts += [f"## {_title(group, file)}", said]
    return "\n\n".join(part for part in parts if part)


def _choice(group: str, file: ConfFile, default: str) -> str:
    name = _relative(group, file)
    chosen = code(f"{group}={name}")
    return f"{chosen} (default)" if name == default else chosen


def _relative(group: str, file: ConfFile) -> str:
    return str(file.path.relative_to(CONF / group).with_suffix(""))


def _title(group: str, file: ConfFile) -> str:
    return f"{group}={_relative(group, file)}" if file.name[0] != "_" else f"Keys of {file.name}"


def _keys_of(group: str, file: ConfFile) -> str:
    """Return a file's keys as a table, or its text if it sets keys of all groups."""
    if file.is_global:
        text = re.sub(r"\A(#.*\n)+", "", file.path.read_text(encoding="utf-8"))
        return block(text, "yaml") if text.strip() else ""
    if [key.name for key in file.keys] in ([], ["name"]):
        return ""
    bases = [base for base in file.bases if (CONF / group / f"{base}.yaml").exists()]
    above = f"On top of {', '.join(code(base) for base in bases)}." if bases else ""
    opening = file.comment if file.name.startswith("_") else ""
    fields = {**config_fields(), **_method_fields(group, file)}
    keys = _key_table(file, f"{group}.", fields, _comments_below(file))
    return "\n\n".join(part for part in (opening, above, keys) if part)


def _method_fields(group: str, file: ConfFile) -> dict[str, Field]:
    """Return the fields of the method of a file, or of a file on top of that one."""
    if group != "strategy":
        return {}
    others = (read(path) for path in sorted(file.path.parent.glob("[!_]*.yaml")))
    above = next((other for other in others if file.name in other.bases), file)
    return method_fields(_value(file, "name") or _value(above, "name") or "")


def _value(file: ConfFile, name: str) -> str | None:
    """Return a value of a file, or of the files below it."""
    for key in file.keys:
        if key.name == name:
            return key.value
    values = [_value(base, name) for base in _bases(file)]
    return next((value for value in values if value is not None), None)


def _bases(file: ConfFile) -> list[ConfFile]:
    paths: list[Path] = [file.path.parent / f"{base}.yaml" for base in file.bases]
    return [read(path) for path in paths if path.exists()]


def _comments_below(file: ConfFile) -> dict[str, str]:
    """Return the comments on keys in the files below this one."""
    told: dict[str, str] = {}
    for base in _bases(file):
        told |= _comments_below(base)
        told |= {key.name: key.comment for key in base.keys if key.comment}
    return told


def _key_table(file: ConfFile, prefix: str, fields: dict[str, Field], below: dict[str, str]) -> str:
    rows = [_row(key, f"{prefix}{key.name}", fields, below) for key in file.keys]
    return table(KEY_HEADS, rows)


def _row(key: Key, name: str, fields: dict[str, Field], below: dict[str, str]) -> list[str]:
    field = fields.get(name, Field("", ""))
    comment = key.comment or below.get(key.name, "")
    repeated = field.told.rstrip(".").lower() in comment.lower()
    told = [cell(part) for part in (comment, "" if repeated else field.told) if part]
    takes = cell(plain_type(field.type)) if key.value else ""
    return [code(name), code(key.value), takes, "<br>".join(told)]


def plain_type(annotation: str) -> str:
    """Return a type in YAML's words: `tuple[int, ...] | None` is a list of whole numbers."""
    listed = re.sub(r"Literal\[(.*?)\]", lambda found: found[1].replace(", ", " | "), annotation)
    if "[" in listed.replace("tuple[", ""):
        return ""
    spelled = re.sub(r"\w+", lambda found: WORDS.get(found[0], found[0]), listed)
    spelled = re.sub(r"tuple\[([\w ]+), \.\.\.\]", r"list of \1s", spelled)
    spelled = re.sub(r"tuple\[list ([\w ]+), \.\.\.\]", r"list of lists \1", spelled)
    return spelled.replace("'", "").replace(" | ", ", ")
