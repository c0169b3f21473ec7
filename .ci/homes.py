"""Check that each noun has one home: the rule of docs/architecture.md on modules and file names.

A module with exactly one importer lives in that importer's package or below it. No two shipped
files have one name. Exceptions stand in EXCEPTIONS, with the reason.

    python .ci/homes.py
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

NOT_SHIPPED = (".ci/", "benchmarks/", "docs/", "examples/", "reference/", "tests/", "trials/")
MANY = ("__init__.py", "__main__.py", "app.py")
"""File names that many packages have."""
EXCEPTIONS = {
    "client_app/app.py": "Flower loads it by name; the local engine calls it, too",
    "data/unlabelled.py": "reads data sets, as its neighbours do; FedDF chooses among them",
    "inference/serving/certificates.py": "serving is one noun, which the command starts",
    "inference/serving/ray_tier.py": "serving is one noun, which the command starts",
    "inference/serving/server.py": "serving is one noun, which the command starts",
    "models/masking.py": "defines what a slice computes; tests of all families use it",
    "nestfl/local_engine.py": "users import LocalGrid from it",
    "nestfl/comparing/run_bars.py": "comparing is one noun, which the command starts",
    "nestfl/launching/local_run.py": "launching is one noun, which the command starts",
    "nestfl/launching/ray_run.py": "launching is one noun, which the command starts",
    "server_app/splitting.py": "reads checkpoints, as its neighbours do; the command writes parts",
    "strategies/methods/serving_rate/serving_rate.py": "the registry names it; a command shows it",
}


def modules() -> dict[str, str]:
    """Return the file of each shipped module, by its name."""
    listed = subprocess.run(["git", "ls-files", "*.py"], capture_output=True, text=True, check=True)
    files = [file for file in listed.stdout.split() if not file.startswith(NOT_SHIPPED)]
    return {file[:-3].replace("/", ".").removesuffix(".__init__"): file for file in files}


def importers(files: dict[str, str]) -> dict[str, set[str]]:
    """Return the files that import each file."""
    found: dict[str, set[str]] = defaultdict(set)
    for file in files.values():
        for node in ast.walk(ast.parse(Path(file).read_text())):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
            elif isinstance(node, ast.Import):
                names = [each.name for each in node.names]
            for name in names:
                if name in files and files[name] != file:
                    found[files[name]].add(file)
    return found


def wrong_homes(files: dict[str, str]) -> list[str]:
    """Return a line for each module whose only importer lives elsewhere."""
    lines = []
    for file, users in sorted(importers(files).items()):
        (user, *others) = users
        home = f"{Path(user).parent}/"
        if not others and not file.startswith(home) and Path(file).name != "__init__.py":
            lines.append(
                f"{file} is imported by {user} alone: move it into {home} or into that file"
            )
    return [line for line in lines if line.split()[0] not in EXCEPTIONS]


def same_names(files: dict[str, str]) -> list[str]:
    """Return a line for each file name that occurs more than once."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for file in files.values():
        by_name[Path(file).name].append(file)
    return [
        f"{' and '.join(same)} have one name: rename one"
        for name, same in sorted(by_name.items())
        if len(same) > 1 and name not in MANY
    ]


def main() -> int:
    """Print what is wrong, and return the exit code."""
    files = modules()
    lines = [*wrong_homes(files), *same_names(files)]
    unused = [each for each in EXCEPTIONS if not Path(each).is_file()]
    lines += [f"{each} is no file: take it out of EXCEPTIONS" for each in unused]
    print("\n".join(lines) or f"{len(files)} modules, each at home")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
