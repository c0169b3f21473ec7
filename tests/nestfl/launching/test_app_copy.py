"""The copy of the app that a run imports is kept by content; a cache is always available."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from nestfl.launching.app_copy import UNUSED, cache_dir, kept_copy, usable_cache

PYPROJECT = '[tool.flwr.app]\nfab-include = ["app/**/*.py"]\n[tool.flwr.app.components]\n'


@pytest.fixture
def checkout(tmp_path: Path, cache_folder: Path) -> Path:
    folder = tmp_path / "a checkout"
    (folder / "app").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "app" / "code.py").write_text("x = 1\n")
    return folder


def test_the_same_code_has_one_copy_with_all_that_was_compiled_there(checkout: Path) -> None:
    first = kept_copy(checkout)
    (first / "app" / "__pycache__").mkdir()
    assert kept_copy(checkout) == first
    assert (first / "app" / "__pycache__").is_dir()
    assert (first / "app" / "code.py").read_text() == "x = 1\n"


def test_what_a_run_leaves_in_its_copy_changes_nothing(checkout: Path) -> None:
    first = kept_copy(checkout)
    (first / "results.csv").write_text("of a plugin\n")
    (first / "app" / "more.py").write_text("x = 3\n")
    assert kept_copy(checkout) == first
    assert (first / "results.csv").exists()
    assert (first / "app" / "more.py").exists()


def test_other_code_has_another_copy(checkout: Path) -> None:
    first = kept_copy(checkout)
    (checkout / "app" / "code.py").write_text("x = 2\n")
    assert kept_copy(checkout) != first
    assert (first / "app" / "code.py").read_text() == "x = 1\n"


def test_a_copy_that_was_changed_is_made_again(checkout: Path) -> None:
    first = kept_copy(checkout)
    (first / "app" / "code.py").unlink()
    assert kept_copy(checkout) == first
    assert (first / "app" / "code.py").read_text() == "x = 1\n"


def test_a_copy_that_no_run_takes_any_more_is_removed(checkout: Path) -> None:
    first = kept_copy(checkout)
    long_ago = time.time() - UNUSED - 1
    os.utime(first, (long_ago, long_ago))
    (checkout / "app" / "code.py").write_text("x = 2\n")
    second = kept_copy(checkout)
    assert [first.exists(), second.exists()] == [False, True]


def test_who_may_not_write_the_cache_has_another_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NESTFL_CACHE", str(tmp_path / "file" / "cache"))
    with usable_cache():
        other = cache_dir()
        assert other.is_dir()
    assert cache_dir() == tmp_path / "file" / "cache"
    assert not other.exists()
