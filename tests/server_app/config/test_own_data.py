"""A run on the user's own data: the facts of its files enter its configuration and stay."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from protocol.work import Work
from server_app.config.composing import Config, ConfigError, compose, compose_dataset, dump, load
from server_app.config.saved import CONFIG_FILE
from tests.support.own_files import reviews, write_clients, write_csv, write_photos

COLUMN = ["dataset.partition=column", "dataset.column=user"]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "my photos", {"no": 12, "null": 12, "1e3": 12})


@pytest.fixture
def texts(tmp_path: Path) -> list[str]:
    file = write_csv(tmp_path / "reviews.csv", reviews(60))
    columns = ["dataset.text=body", "dataset.label=stars"]
    return ["dataset=table", "model=bert-mini", f"dataset.path={file}", *columns]


def saved(config: Config, folder: Path) -> Path:
    folder.mkdir()
    (folder / CONFIG_FILE).write_text(dump(config), encoding="utf-8")
    return folder


def test_what_the_files_say_is_kept_with_the_run_whatever_becomes_of_them(
    photos: Path, tmp_path: Path
) -> None:
    """Classes whose names YAML would take for something else, too."""
    config = compose(["dataset=folder", f"dataset.path={photos}"])
    assert config.dataset.classes == ("1e3", "no", "null")
    assert config.task.num_classes == 3
    assert config.task.image_size == 8
    run = saved(config, tmp_path / "run")
    shutil.rmtree(photos)
    assert load(run / CONFIG_FILE) == config
    resumed = compose([f"resume={run}"])
    assert resumed.dataset == config.dataset


def test_clients_are_told_all_of_it(photos: Path) -> None:
    config = compose(["dataset=folder", f"dataset.path={photos}", "dataset.flip=false"])
    from flwr.app import RecordDict

    work = Work.read(RecordDict({"work": config.query().record()}))
    assert work.dataset == config.dataset


def test_the_data_says_how_many_clients_there_are(texts: list[str]) -> None:
    config = compose([*texts, *COLUMN])
    assert (config.fleet.clients, config.dataset.clients, config.clients_per_round) == (5, 5, 5)
    few = compose([*texts, *COLUMN, "fleet.clients=3", "clients_per_round=2"])
    assert (few.fleet.clients, few.dataset.clients, few.clients_per_round) == (3, 3, 2)


def test_more_clients_than_there_are_cannot_be_asked_for(texts: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"fleet\.clients is 6, but the data has 5: expected no"):
        compose([*texts, *COLUMN, "fleet.clients=6"])
    with pytest.raises(ConfigError, match="clients_per_round is 6, but the fleet has 5 clients"):
        compose([*texts, *COLUMN, "clients_per_round=6"])


def test_a_folder_for_each_client_composes(tmp_path: Path) -> None:
    write_clients(tmp_path, {name: {"cat": 4, "dog": 4} for name in "abc"})
    overrides = ["dataset=folder", f"dataset.path={tmp_path}", "dataset.partition=folders"]
    assert compose(overrides).fleet.clients == 3


def test_wrong_data_is_one_line_that_names_the_part(tmp_path: Path, texts: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"^dataset: .*nowhere does not exist$"):
        compose(["dataset=folder", f"dataset.path={tmp_path}/nowhere"])
    with pytest.raises(ConfigError, match=r"^dataset: path is null: expected dataset\.path"):
        compose(["dataset=folder"])
    with pytest.raises(ConfigError, match=r"^dataset: .*: no column 'boddy' \(dataset\.text\)"):
        compose([*texts, "dataset.text=boddy"])


def test_the_data_set_alone_does_not_ask_for_a_network_that_reads_it(texts: list[str]) -> None:
    alone = [text for text in texts if not text.startswith("model")]
    assert compose_dataset([*alone, "fleet.clients=7"]).clients == 7
    assert compose_dataset(alone, look=False).classes is None


def test_a_network_that_cannot_read_it_is_told_with_those_that_can(texts: list[str]) -> None:
    with pytest.raises(ConfigError, match="holds tokens, which these read: bert, bert-mini, be"):
        compose([*texts, "model=resnet20"])


def test_a_data_set_of_the_catalogue_has_no_such_keys() -> None:
    with pytest.raises(ConfigError, match="no key 'image_size' in dataset"):
        compose("dataset=cifar10 dataset.image_size=64")
