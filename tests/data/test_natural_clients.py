"""Clients that the data has by nature: who wrote it, or whose folder it lies in, trains on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.catalog import DataError
from data.clients import all_clients, client_rows
from data.overview import dealt, notes
from data.own_source import Owners, own_owners
from data.partition import client_names, natural_clients, natural_parts
from data.spec import DatasetSpec
from data.splits import splits_of
from tests.support.own_files import photos, reviews, table, write_clients, write_csv

CLIENTS = {
    "anna": {"cat": 6, "dog": 2},
    "ben": {"cat": 2},
    "cleo": {"cat": 2, "yak": 5},
}


def test_a_folder_for_each_client_is_its_part(tmp_path: Path) -> None:
    """A test is given, so that all of these are to train on."""
    write_clients(tmp_path / "train", CLIENTS)
    write_clients(tmp_path / "test", {"dora": {"cat": 1, "dog": 1, "yak": 1}})
    spec = photos(tmp_path, partition="folders")
    assert natural_clients(spec) == 3
    spec = replace(spec, clients=3)
    found = dealt(spec)
    by_name = dict(zip(found.names, found.counts.tolist(), strict=True))
    assert by_name == {"anna": [6, 2, 0], "ben": [2, 0, 0], "cleo": [2, 0, 5]}
    assert notes(spec, found) == ["only one client has: dog (anna), yak (cleo)"]
    assert len(splits_of(spec).test.labels) == 3


def test_the_same_folders_can_be_dealt_out_otherwise(tmp_path: Path) -> None:
    spec = photos(write_clients(tmp_path, CLIENTS), clients=2)
    assert spec.classes == ("cat", "dog", "yak")
    assert sum(map(len, client_rows(spec))) == 13  # of 17, without 2, 1 and 1 to test on


def test_the_seed_draws_the_order_and_who_takes_part(tmp_path: Path) -> None:
    spec = table(write_csv(tmp_path / "r.csv", reviews(60)), partition="column", column="user")
    everyone = replace(spec, clients=5)
    assert sorted(client_names(everyone)) == ["u0", "u1", "u2", "u3", "u4"]
    orders = {client_names(replace(everyone, seed=seed)) for seed in range(5)}
    assert len(orders) > 1
    some = replace(spec, clients=2)
    assert client_names(some) == client_names(everyone)[:2]
    assert notes(some, dealt(some))[0] == "2 of the data's 5 clients take part, drawn by the seed"
    with pytest.raises(DataError, match="clients is 6, but the data has 5: expected no more"):
        client_names(replace(spec, clients=6))


def test_who_is_held_out_for_the_test_with_all_examples_is_told(tmp_path: Path) -> None:
    """A user with one example of a class may leave nothing to train on: the run goes on without."""
    rows = [{"body": f"word{n}", "stars": n % 2, "user": f"u{n:02}"} for n in range(20)]
    spec = table(write_csv(tmp_path / "r.csv", rows), partition="column", column="user")
    owners = own_owners(spec)
    assert natural_clients(spec) == len(owners.names) == 16
    assert len(owners.held_out) == 4
    assert sorted(owners.names + owners.held_out) == [f"u{n:02}" for n in range(20)]
    everyone = replace(spec, clients=16)
    gone = f"held out for the test with all examples: {', '.join(owners.held_out)}"
    assert gone in notes(everyone, dealt(everyone))
    with pytest.raises(
        DataError,
        match=r"clients is 20, but the data has 16 with examples to train on \(all examples of 4 "
        r"more are held out for the test\): expected no more",
    ):
        client_names(replace(spec, clients=20))


def test_whoever_wrote_it_trains_on_it(tmp_path: Path) -> None:
    spec = table(
        write_csv(tmp_path / "r.csv", reviews(60)), partition="column", column="user", clients=5
    )
    owners = own_owners(spec)
    for name, rows in zip(client_names(spec), client_rows(spec), strict=True):
        assert {owners.names[owner] for owner in owners.of_rows[rows]} == {name}
    assert len(np.unique(np.concatenate(client_rows(spec)))) == 48
    together = all_clients(spec)
    assert len(together.train) + len(together.validation) + len(together.test) == 48


def test_an_archive_names_clients_in_an_array(tmp_path: Path) -> None:
    images = np.arange(8, dtype=np.uint8)[:, None, None] + np.zeros((8, 4, 4), np.uint8)
    who = np.array([3, 3, 1, 1, 3, 1, 3, 1])
    np.savez(tmp_path / "a.npz", x=images, y=[0, 1] * 4, who=who)
    spec = photos(tmp_path / "a.npz", partition="column", column="who", clients=2)
    assert own_owners(spec).names == ("1", "3")
    train = splits_of(spec).train
    for name, rows in zip(client_names(spec), client_rows(spec), strict=True):
        assert {who[image[0, 0, 0]] for image in train.images[rows]} == {int(name)}  # type: ignore[union-attr]
    with pytest.raises(DataError, match=r"no array 'whom' \(dataset\.column\); the arrays are: x"):
        photos(tmp_path / "a.npz", partition="column", column="whom")


def test_folders_and_columns_that_are_not_there_are_told(tmp_path: Path) -> None:
    write_clients(tmp_path, {"": {"cat": 4, "dog": 4}})
    spec = photos(tmp_path, partition="folders")
    with pytest.raises(DataError, match="partition is folders, but the data has no folders of cli"):
        natural_clients(spec)
    with pytest.raises(DataError, match=r"column is 'user', but .* holds folders of images, and"):
        photos(tmp_path, partition="column", column="user")


def test_a_row_of_nobody_is_told(tmp_path: Path) -> None:
    rows = [*reviews(6), {"body": "whose", "stars": 1, "user": ""}]
    with pytest.raises(DataError, match=r"r\.csv, row 8: no user: expected the name of a client"):
        table(write_csv(tmp_path / "r.csv", rows), partition="column", column="user")


@given(st.lists(st.integers(0, 5), min_size=1, max_size=50), st.integers(0, 3), st.data())
@settings(max_examples=50)
def test_parts_are_disjoint_and_each_is_of_one_client(
    of_rows: list[int], seed: int, data: st.DataObject
) -> None:
    names = tuple("abcdef"[: max(of_rows) + 1])
    clients = data.draw(st.integers(1, len(names)))
    spec = DatasetSpec("table", clients=clients, seed=seed, partition="column", column="who")
    parts = natural_parts(spec, Owners(names, np.array(of_rows)))
    assert len(parts) == clients
    whose = [set(np.array(of_rows)[part].tolist()) for part in parts]
    assert all(len(each) <= 1 for each in whose)
    rows = np.concatenate(parts).tolist()
    assert len(rows) == len(set(rows))
    assert clients < len(names) or sorted(rows) == list(range(len(of_rows)))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {"max_train": 4},
            r"dataset\.max_train=4 leaves client 'u\d' 0 of its \d+ training examples( \(so do "
            r"\d more clients\))?: expected at least 1; raise dataset\.max_train or set it to null",
        ),
        (
            {"server": 0.95},
            r"dataset\.server=0\.95 leaves client 'u\d' 0 of .*; lower dataset\.server$",
        ),
        (
            {"max_train": 8, "server": 0.5},
            r"dataset\.max_train=8 and dataset\.server=0\.5 leaves .*to null, or lower dataset\.se",
        ),
        (
            {"min_examples": 30, "clients": 1},
            r"client 'u\d' has \d+ training examples, fewer than dataset\.min_examples 30: lower",
        ),
    ],
)
def test_a_client_that_is_left_without_examples_is_named(
    tmp_path: Path, settings: dict[str, Any], told: str
) -> None:
    spec = table(write_csv(tmp_path / "r.csv", reviews(60)), partition="column", column="user")
    with pytest.raises(DataError, match=told):
        client_rows(replace(spec, **{"clients": 3} | settings))
