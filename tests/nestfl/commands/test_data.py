"""`nestfl data` shows a run's data, all problems in it, and each client's part."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from nestfl.commands import app
from tests.support.own_files import reviews, write_clients, write_csv, write_photo, write_photos


def told(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["data", *map(str, arguments)])
    return result.exit_code, result.output


def test_photos_are_shown_with_their_classes_sizes_and_clients(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "my photos", {"cat": 10, "dog": 5})
    (folder / "notes.txt").write_text("no image")
    (folder / "yak").mkdir()
    code, page = told(folder, "fleet.clients=2")
    assert code == 0
    lines = [" ".join(line.split()) for line in page.splitlines()]
    assert lines[0] == f"folder: {folder}"
    assert "pixels: 8x8 (15)" in lines
    assert "grey: 0 of 15 images" in lines
    assert "taken as: 8x8 pixels, RGB" in lines
    assert "not read, by suffix: 1 .txt" in lines
    assert "folders without images: yak" in lines
    assert "test part: held out: 0.2 of each class, drawn by test_seed 0" in lines
    assert "│ cat │ 8 │ 2 │" in lines
    assert "│ dog │ 4 │ 1 │" in lines
    assert "│ all │ 12 │ 3 │" in lines
    assert sum(line.startswith(("0 6", "1 6")) for line in lines) == 2


def test_clients_of_the_data_are_shown_by_name_as_a_run_would_have_them(tmp_path: Path) -> None:
    clients = {"anna": {"cat": 5, "dog": 5}, "ben": {"cat": 5}, "cleo": {"cat": 5, "yak": 5}}
    folder = write_clients(tmp_path / "photos", clients)
    code, text = told(folder, "dataset.partition=folders", "dataset.test_share=0.1", "--json")
    assert code == 0
    found = json.loads(text)
    assert found["classes"]["dog"] == {"train": 4, "test": 1}
    assert sorted(found["clients"]) == ["anna", "ben", "cleo"]
    assert found["clients"]["anna"]["dog"] == 4
    assert found["only_one_client"] == {"dog": "anna", "yak": "cleo"}
    code, page = told(folder, "dataset.partition=folders", "fleet.clients=2")
    assert "2 of the data's 3 clients take part, drawn by the seed" in page


def test_all_that_is_broken_is_listed_and_the_command_fails(tmp_path: Path) -> None:
    """The damage shows in the first bytes, or only when the whole file is decoded."""
    folder = write_photos(tmp_path / "photos", {"cat": 5, "dog": 5})
    (folder / "cat" / "00.png").write_bytes(b"no image")
    cut = folder / "dog" / "03.png"
    cut.write_bytes(cut.read_bytes()[:45])
    write_photo(folder / "loose.png")
    code, page = told(folder)
    assert code == 2
    assert f"{folder}/cat/00.png cannot be decoded: " in page
    assert f"{folder}/loose.png lies in no folder: expected the folder of its class" in page
    assert "nestfl run would stop: dataset: " in page
    code, text = told(folder, "--json")
    assert code == 2
    assert json.loads(text)["classes"] == {"cat": 5, "dog": 5, "photos": 1}
    (folder / "loose.png").unlink()
    (folder / "cat" / "00.png").unlink()
    assert f"{folder}/dog/03.png cannot be decoded: " in told(folder)[1]


def test_files_whose_bodies_are_broken_are_listed_whatever_else_is_wrong(tmp_path: Path) -> None:
    """Images of several sizes end a run before one is decoded; those for the test come last."""
    folder = tmp_path / "photos"
    for part in ("train", "test"):
        write_photos(folder / part, {"cat": 3, "dog": 3})
        cut = folder / part / "dog" / "02.png"
        cut.write_bytes(cut.read_bytes()[:-40])
    write_photo(folder / "train" / "cat" / "large.png", size=(9, 9))
    os.mkfifo(folder / "train" / "dog" / "pipe.png")
    code, page = told(folder)
    assert code == 2
    assert "broken: 3" in page
    for name in ("train/dog/02.png", "train/dog/pipe.png", "test/dog/02.png"):
        assert f"  {folder}/{name} cannot be decoded: " in page


def test_names_of_files_cannot_steer_a_terminal(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "photos", {"cat\x1b]0;owned\x07\x1b[31m": 5, "b\nfake": 5})
    (folder / "dog\x1b[2J").mkdir()
    for settings, code in (((), 0), (("dataset.image_size=0",), 2), (("fleet.clients=99",), 2)):
        found, page = told(folder, *settings, *([] if settings else ["fleet.clients=2"]))
        assert found == code
        assert not {"\x1b", "\x07"} & {*page}
        assert not any(line.startswith("fake") for line in page.splitlines())


def test_rows_that_are_broken_are_listed_too(tmp_path: Path) -> None:
    rows = [*reviews(6), *({"body": "none", "stars": "", "user": "u"} for _ in range(2))]
    file = write_csv(tmp_path / "reviews.csv", rows)
    code, page = told(file, "dataset.text=body", "dataset.label=stars")
    assert code == 2
    assert f"{file}, row 8: no stars: expected a class" in page
    assert f"{file}, row 9: no stars: expected a class" in page


def test_a_table_is_asked_which_column_holds_the_texts(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "reviews.csv", reviews(6))
    code, page = told(file)
    assert code == 2
    assert "Set dataset.label, and dataset.text to that of the texts, if it is to read" in page
    assert "any, to one of: body, stars, user" in page


def test_a_data_set_of_the_catalogue_is_dealt_out_as_asked(tmp_path: Path) -> None:
    drawing = tmp_path / "clients.svg"
    asked = ("dataset=digits", "dataset.partition=classes", "fleet.clients=5", "--json")
    code, text = told(*asked, "--plot", drawing)
    assert code == 0
    found = json.loads(text)
    held = [sum(count > 0 for count in client.values()) for client in found["clients"].values()]
    assert held == [2] * 5
    assert "<svg" in drawing.read_text()


def test_a_running_text_has_no_classes_to_show() -> None:
    code, page = told("dataset=docstrings-words", "fleet.clients=3")
    assert code == 0
    assert "runs of words" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nestfl data: nowhere does not exist"),
        (["a", "b"], "nestfl data: a and b: expected one path, and settings as key=value"),
        (["dataset=digits", "--plot", "x.docx"], "nestfl data: cannot draw to x.docx"),
        (["dataset=digits", "dataset.alpha=0"], "nestfl data: dataset: alpha is 0"),
    ],
)
def test_what_cannot_be_looked_at_is_told_in_a_line(arguments: list[str], message: str) -> None:
    code, page = told(*arguments)
    assert code == 2
    assert message in page
