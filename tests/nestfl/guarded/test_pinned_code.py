"""A fingerprint depends on all files of a bundle, and on nothing else."""

from __future__ import annotations

import re
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

from nestfl.bundle import APP, BundleError, app_files, copy_app
from nestfl.guarded import pinned_code
from nestfl.guarded.pinned_code import (
    CodeError,
    allowed_code,
    check_code,
    fingerprint,
    fingerprint_of,
)

FILES = {"pyproject.toml": b"[project]", "client_app/app.py": b"app = 1", "a/b.py": b""}


def bundle(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return buffer.getvalue()


def test_equal_files_have_one_fingerprint_however_they_are_packed() -> None:
    packed = fingerprint(bundle(FILES))
    assert re.fullmatch("[0-9a-f]{64}", packed)
    assert fingerprint(bundle(FILES, zipfile.ZIP_STORED)) == packed
    assert fingerprint(bundle(dict(reversed(FILES.items())))) == packed


@pytest.mark.parametrize(
    "other",
    [
        FILES | {"client_app/app.py": b"app = 2"},
        FILES | {"client_app/evil.py": b""},
        FILES | {".info/CONTENT": b"/etc/passwd,0123,8"},  # Flower opens what is in its list
        {name: content for name, content in FILES.items() if name != "a/b.py"},
        {name.replace("a/", "./a/"): content for name, content in FILES.items()},
        {name.replace("client_app/app", "client_app/App"): each for name, each in FILES.items()},
    ],
)
def test_another_file_name_or_byte_is_another_fingerprint(other: dict[str, bytes]) -> None:
    assert fingerprint(bundle(other)) != fingerprint(bundle(FILES))


def test_a_file_that_is_there_twice_is_not_hidden_by_its_twin() -> None:
    buffer = BytesIO(bundle(FILES))
    with zipfile.ZipFile(buffer, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("client_app/app.py", b"app = 2")
    assert fingerprint(buffer.getvalue()) != fingerprint(bundle(FILES))


def test_a_bundle_that_cannot_be_read_is_told() -> None:
    whole = bundle(FILES, zipfile.ZIP_STORED)
    damaged = whole.replace(b"app = 1", b"app = 7")
    for broken in (b"", b"no archive", whole[: len(whole) // 2], damaged):
        with pytest.raises(CodeError, match="the run's bundle cannot be read"):
            fingerprint(broken)


def test_a_bundle_that_would_fill_the_memory_is_not_unpacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pinned_code, "LARGEST", 1000)
    with pytest.raises(CodeError, match=r"holds 1001 bytes: expected at most 1000"):
        fingerprint(bundle({"zeros.py": bytes(1001)}))


def test_the_node_config_says_which_code_runs() -> None:
    own, other = "0" * 64, "a" * 64
    assert allowed_code(None, own) == frozenset({own})
    assert allowed_code("any", own) is None
    assert allowed_code(f"{other}, {own}", own) == frozenset({own, other})
    for wrong in ("", "all", other[:16], other.upper(), f"{other} x"):
        with pytest.raises(CodeError, match="expected fingerprints of 64 hexadecimal digits"):
            allowed_code(wrong, own)


def test_only_allowed_code_passes_and_the_error_names_what_was_sent() -> None:
    sent = bundle(FILES)
    check_code(sent, None)
    check_code(sent, {fingerprint(sent)})
    with pytest.raises(CodeError) as refused:
        check_code(sent, {"b" * 64})
    assert f'code="{fingerprint(sent)}"' in str(refused.value)
    assert "but only bbbbbbbbbbbb" in str(refused.value)


def test_a_checkout_has_the_fingerprint_of_the_bundle_that_flower_makes_of_it(
    tmp_path: Path,
) -> None:
    copy_app(APP, tmp_path / "app")
    (tmp_path / "app" / ".venv").mkdir()
    (tmp_path / "app" / ".venv" / "installed.py").write_text("")
    (tmp_path / "app" / "client_app" / "link.py").symlink_to("app.py")
    (tmp_path / "app" / "client_app" / "test_it.py").write_text("")
    made = build_fab_from_disk(tmp_path / "app")
    (tmp_path / "nestfl.fab").write_bytes(made)
    own = fingerprint_of(tmp_path / "app")
    assert own == fingerprint(made) == fingerprint_of(tmp_path / "nestfl.fab")
    assert own == fingerprint_of(APP)


def test_where_there_is_no_app_it_is_told(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=f"no Flower app in {tmp_path}"):
        app_files(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool]")
    with pytest.raises(BundleError, match="expected a checkout of nestfl"):
        fingerprint_of(tmp_path)


def test_a_plugin_is_part_of_the_code_that_a_device_pins(tmp_path: Path) -> None:
    """It is in the bundle that Flower makes; a device that pins the checkout alone refuses it."""
    own = {"plugins/mine.py": b"x = 1\n", "plugins/pack/conf/model/a.yaml": b"name: a\n"}
    copy_app(APP, tmp_path / "app", own)
    sent = build_fab_from_disk(tmp_path / "app")
    with zipfile.ZipFile(BytesIO(sent)) as archive:
        assert {name: archive.read(name) for name in own} == own
    check_code(sent, {fingerprint_of(tmp_path / "app")})
    copy_app(APP, tmp_path / "other", {"plugins/mine.py": b"x = 2\n"})
    for other in (APP, tmp_path / "other"):
        with pytest.raises(CodeError, match="this device does not run the code"):
            check_code(sent, {fingerprint_of(other)})
