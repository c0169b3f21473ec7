"""The notebook's cells run in their order, in an empty folder, and print what the text promises."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

NOTEBOOK = Path(__file__).parents[2] / "docs" / "quickstart.ipynb"


def test_the_notebooks_cells_run_from_a_config_to_answers(tmp_path: Path) -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert code[0].startswith("import nestfl\n")
    done = subprocess.run(
        [sys.executable, "-c", "\n\n".join(code)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = done.stdout
    assert told.startswith("4 clients with the budgets ")
    levels = re.findall(r"level \d: (\S+) of the channels, ([\d,]+) weights", told)
    assert len(levels) == 4
    assert sorted(levels) == levels, "a larger level has more channels"
    accuracies = re.findall(r"level (\d): (\d+)% of \d+ test images are right", told)
    assert [number for number, _ in accuracies] == ["1", "4"]
    assert int(accuracies[1][1]) > 20, "twice as good as chance"
    (report,) = re.findall(r"open (\S+) in a browser", told)
    assert (tmp_path / report).is_file()


def test_the_notebook_is_kept_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    kept = [cell["id"] for cell in cells if cell.get("outputs") or cell.get("execution_count")]
    assert kept == []
