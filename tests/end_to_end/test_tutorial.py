"""The tutorial's blocks run in their order, from an empty folder, with the results it names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r'^```(sh|python)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    language: str
    file: str
    """Name of the file for a block that is saved instead of run."""
    text: str


def blocks() -> Iterator[Block]:
    for language, file, text in BLOCK.findall(TUTORIAL.read_text()):
        yield Block(language, file, text)


def run(block: Block, folder: Path) -> str:
    """Return a block's output, run in a folder."""
    shell = ["bash", "-euo", "pipefail", "-c"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [*(shell if block.language == "sh" else [sys.executable, "-c"]), block.text],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{block.text}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.processes
def test_the_tutorial_leads_from_photos_to_answers_and_a_comparison(tmp_path: Path) -> None:
    folder = tmp_path / "my first fleet"
    folder.mkdir()
    told = ""
    for block in blocks():
        if block.file:
            (folder / block.file).write_text(block.text)
        else:
            told += f"$ {block.text}{run(block, folder)}\n"
    assert len(list(folder.glob("photos/*/*.png"))) == 600
    assert (folder / "who-has-what.svg").is_file()
    (right, asked) = re.findall(r"(\d+) of (\d+) new photos are right", told)[0]
    assert int(asked) == 100
    assert int(right) >= 70, told
    assert len(re.findall(r"level \d: \d+% of the test photos are right", told)) == 4
    assert re.search(r"^first +scalefl .* finished", told, re.MULTILINE), told
    for run_name in ("first", "mine", "two-methods"):
        assert (folder / "runs" / run_name / "report.html").is_file()
    table = (folder / "runs/two-methods/table.md").read_text()
    assert "heterofl" in table
    assert "fedavg" in table
    written = {path.name for path in folder.iterdir()}
    assert written == {"photos", "new photos", "runs", "mine.py", "who-has-what.svg",
                       "answers.csv", "answers-of-mine.csv"}  # fmt: skip
