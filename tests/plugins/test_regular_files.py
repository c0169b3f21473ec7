"""Only regular files are opened, and no reader waits for a writer."""

import os
import socket
from pathlib import Path

import pytest

from plugins import PluginError, load
from plugins.regular_files import IrregularFileError, open_regular, require_regular


def test_a_regular_file_and_a_link_to_one_are_opened(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("größer", encoding="utf-8")
    (tmp_path / "link").symlink_to("a")
    with open_regular(tmp_path / "link", "r") as text, open_regular(tmp_path / "a") as content:
        assert (text.read(), content.read()) == ("größer", "größer".encode())


def test_pipes_sockets_devices_and_folders_are_refused_without_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as served:
        monkeypatch.chdir(tmp_path)  # a socket's path may have some 100 letters
        served.bind("socket")
    for place, kind in {
        tmp_path / "pipe": "a named pipe",
        tmp_path / "link": "a named pipe",
        tmp_path / "socket": "a socket",
        Path("/dev/zero"): "a device",
        tmp_path: "a folder",
    }.items():
        for use in (require_regular, open_regular):
            with pytest.raises(IrregularFileError) as refused:
                use(place)
            assert str(refused.value) == f"{place} is {kind}: expected a regular file"


def test_what_is_not_there_is_told_as_by_open(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "missing")


def test_a_plugin_cannot_take_the_name_of_this_file(tmp_path: Path) -> None:
    (tmp_path / "regular_files.py").write_text("")
    with pytest.raises(PluginError, match="cannot be called 'regular_files'"):
        load(tmp_path / "regular_files.py")
