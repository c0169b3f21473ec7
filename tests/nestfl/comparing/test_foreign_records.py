"""A comparison's record from another program is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nestfl.comparing.comparison import Comparison
from nestfl.comparing.results import Result
from nestfl.comparing.trials import Trial
from protocol.documents import DocumentError
from server_app.config.typed import ConfigError

RECORD: dict[str, object] = {
    "command": [],
    "baseline": {},
    "target": None,
    "trials": [{"run": "a", "choices": {}}],
}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[" * 100_000, "nested more than 64 deep"),
        (json.dumps({**RECORD, "trials": [{"run": "a", "choices": 3}]}), "trials.0.choices is 3"),
        (json.dumps({**RECORD, "target": "high"}), "target is 'high': expected a number"),
        (json.dumps({**RECORD, "target_score": "loss"}), "target_score is 'loss': expected one"),
        ("{}", "has no "),
    ],
)
def test_a_record_is_checked(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "comparison.json").write_text(text)
    with pytest.raises(ConfigError, match=told) as error:
        Comparison.read(tmp_path)
    assert str(tmp_path / "comparison.json") in str(error.value)


@pytest.mark.parametrize("text", ["{}", '{"rounds": "5", "levels": {}}', "[" * 100_000])
def test_a_run_s_summary_is_checked(tmp_path: Path, text: str) -> None:
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(DocumentError, match=f"{tmp_path / 'summary.json'} cannot be read: "):
        Result.read(Trial({}), tmp_path, epochs=1)
