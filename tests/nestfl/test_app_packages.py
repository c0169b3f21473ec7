"""`import nestfl` finds the app's packages, in any folder; a device's guards leave them out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import nestfl

CHECKOUT = Path(__file__).resolve().parents[2]


def python(folder: Path, script: str, **environment: str) -> tuple[int, str]:
    """The status and the output of a script that runs in a folder."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's project, with folders of its own that are called as nestfl's are."""
    for name in ("models", "data"):
        (tmp_path / name).mkdir()
    (tmp_path / "models" / "__init__.py").write_text("Mine = 1")
    (tmp_path / "training.py").write_text("Mine = 1")
    return tmp_path


def test_the_packages_are_those_that_a_run_sends() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    sent = {pattern.partition("/")[0] for pattern in project["tool"]["flwr"]["app"]["fab-include"]}
    assert set(nestfl.PACKAGES) == sent - {"conf"}


def test_the_packages_are_found_before_those_of_a_users_project(project: Path) -> None:
    script = """
import sys
import nestfl
sys.path.insert(0, ".")  # as Ray does later
from models import Slice
import data.clients, training.fitting
print(Slice(width=0.5).width)
"""
    assert python(project, script) == (0, "0.5\n")


@pytest.mark.parametrize(("name", "place"), [("models", "models"), ("data", "data"),
                                             ("training", "training.py")])  # fmt: skip
def test_what_was_imported_in_their_place_is_named_in_one_line(
    project: Path, name: str, place: str
) -> None:
    code, told = python(project, f"import {name}\nimport nestfl")
    assert code == 1
    assert told.splitlines()[-1] == (
        f"ImportError: {project / place} was imported as '{name}', which is a package of nestfl: "
        "expected `import nestfl` before it, or another name for that folder"
    )


def test_a_copy_of_the_app_that_a_process_has_begun_with_stays_in_use(tmp_path: Path) -> None:
    for name in nestfl.PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    script = "import models\nimport nestfl\nimport strategies\nprint(strategies.__file__)"
    assert python(tmp_path, script) == (0, f"{tmp_path}/strategies/__init__.py\n")


def test_a_simulations_processes_import_the_copy_that_was_made_for_them(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "__init__.py").write_text("")
    script = "import nestfl\nimport models\nprint(models.__file__)"
    told = python(Path("/"), script, NESTFL_APP=str(tmp_path))
    assert told == (0, f"{tmp_path}/models/__init__.py\n")


@pytest.mark.parametrize(
    ("module", "first"),
    [
        ("superlink", "guard_servers"),
        ("supernode", "options"),
        ("launcher", "replace"),
        ("client_app", "is_own"),
    ],
)
def test_a_guarded_process_finds_no_package_of_the_app(
    module: str, first: str, tmp_path: Path
) -> None:
    """What a run brings would be completed with the device's own code."""
    script = f"""
import sys
from nestfl.guarded import {module} as guarded

def instead(*_, **__):
    try:
        import models
    except ModuleNotFoundError as error:
        sys.exit(str(error))

setattr(guarded, {first!r}, instead)
sys.argv = ["", "1", "2", "", ""]
guarded.main()
"""
    safe = {"PYTHONPATH": str(CHECKOUT), "PYTHONSAFEPATH": "1"}
    assert python(tmp_path, script, **safe) == (1, "No module named 'models'\n")


PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]
OURS = re.compile(rf"^(?:from|import) (?:{'|'.join(nestfl.PACKAGES)})\b", re.MULTILINE)


def test_snippets_of_the_docs_begin_with_the_import() -> None:
    """Plugins do not: a device that they are sent to may have no nestfl."""
    pages = [re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL) for page in PAGES]
    scripts = [text for found in pages for text in found if "@register" not in text]
    ours = [text for text in scripts if OURS.search(text)]
    assert len(ours) >= 3
    assert [text for text in ours if not text.startswith("import nestfl")] == []
