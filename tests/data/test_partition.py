"""Partitions: each training example belongs to one client, and every client has some."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.catalog import DataError
from data.clients import all_clients, client_data, device_data, global_test
from data.examples import ImageSplit
from data.partition import like_a_client, partition, split_parts
from data.spec import PARTITION_KINDS, DatasetSpec, PartitionKind
from data.splits import load_images
from tests.support.image_files import (
    FACTS,
    as_set,
    pixels,
    random_split,
    write_image_folder,
    write_parquet,
)

pytestmark = pytest.mark.usefixtures("cache_folder")

LABELS = np.repeat(np.arange(10), 60)


# Partitions


def spec_of(kind: PartitionKind, *, clients: int, **given: Any) -> DatasetSpec:
    """Return a partition of a kind; of `shares`, later clients have more."""
    shares = tuple(range(10, 10 + clients)) if kind == "shares" else None
    return DatasetSpec(partition=kind, clients=clients, shares=shares, **given)


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(PARTITION_KINDS),
    clients=st.integers(1, 20),
    alpha=st.floats(0.5, 100),
    seed=st.integers(0, 2**32),
)
def test_every_example_belongs_to_at_most_one_client_and_none_has_nothing(
    kind: PartitionKind, clients: int, alpha: float, seed: int
) -> None:
    spec = spec_of(kind, clients=clients, alpha=alpha, seed=seed)
    parts = partition(spec, LABELS)
    rows = np.concatenate(parts)
    assert len(parts) == clients
    assert min(map(len, parts)) >= 1
    assert len(np.unique(rows)) == len(rows)
    if kind != "classes" or clients >= 10:
        assert sorted(rows) == list(range(len(LABELS)))


@settings(deadline=None)
@given(
    size=st.integers(1, 300),
    validation=st.floats(0, 0.99),
    test=st.floats(0, 0.99),
    seed=st.integers(0, 2**32),
)
def test_parts_of_a_client_cover_its_rows_without_overlap(
    size: int, validation: float, test: float, seed: int
) -> None:
    if validation + test >= 1:
        validation, test = validation / 2, test / 2
    spec = DatasetSpec(clients=10, validation=validation, test=test, seed=seed)
    rows = np.arange(1000, 1000 + size)
    parts = split_parts(rows, spec, 3)
    assert sorted(np.concatenate(parts)) == rows.tolist()
    assert len(parts[0]) >= 1
    assert [len(part) for part in parts[1:]] == [int(size * validation), int(size * test)]


@pytest.mark.parametrize("kind", PARTITION_KINDS)
def test_same_seed_same_partition_and_another_seed_another(kind: PartitionKind) -> None:
    spec = spec_of(kind, clients=10)
    first, again = (partition(spec, LABELS) for _ in range(2))
    other = partition(replace(spec, seed=1), LABELS)
    assert all(map(np.array_equal, first, again))
    assert not all(map(np.array_equal, first, other))


def test_clients_have_their_shares_in_the_order_of_their_numbers() -> None:
    spec = DatasetSpec(partition="shares", clients=4, shares=(1, 1, 2, 4), max_train=80)
    assert [len(part) for part in partition(spec, LABELS)] == [10, 10, 20, 40]


def test_the_highly_biased_layers_hold_what_the_paper_says() -> None:
    shares = (0.85, 0.85, 0.85, 0.85, 9.95, 9.95, 76.7)
    spec = DatasetSpec(partition="shares", clients=7, shares=shares, max_train=4000)
    sizes = [len(part) for part in partition(spec, np.repeat(np.arange(10), 400))]
    assert (sum(sizes[:4]), sum(sizes[4:6]), sizes[6]) == (136, 796, 3068)


@pytest.mark.parametrize("shares", [None, (1, 2), (1, 2, 0), (1, 2, float("inf"))])
def test_shares_must_be_of_all_clients(shares: tuple[float, ...] | None) -> None:
    with pytest.raises(DataError, match="expected a number above 0 for each of 3 clients"):
        DatasetSpec(partition="shares", clients=3, shares=shares)


def test_partition_is_the_same_on_every_machine() -> None:
    clients = partition(DatasetSpec(partition="dirichlet", clients=3, max_train=12), LABELS)
    assert [rows.tolist() for rows in clients] == [
        [576],
        [229],
        [541, 506, 142, 459, 363, 109, 153, 212, 36, 89],
    ]


def test_small_alpha_gives_skewed_classes_and_large_alpha_even_ones() -> None:
    def largest_class_share(alpha: float) -> float:
        spec = DatasetSpec(partition="dirichlet", clients=6, alpha=alpha)
        counts = [np.bincount(LABELS[rows]) for rows in partition(spec, LABELS)]
        return float(np.mean([count.max() / count.sum() for count in counts]))

    assert largest_class_share(0.1) > 0.4
    assert largest_class_share(1000) < 0.15


def test_sizes_are_skewed_but_classes_are_not() -> None:
    spec = DatasetSpec(partition="sizes", clients=5, alpha=0.5, min_examples=20)
    parts = partition(spec, LABELS)
    sizes = [len(rows) for rows in parts]
    assert max(sizes) > 3 * min(sizes)
    assert min(sizes) >= 20
    assert len(np.unique(LABELS[max(parts, key=len)])) == 10


def test_uneven_sizes_are_within_a_factor_of_two_and_classes_are_alike() -> None:
    labels = np.tile(np.arange(10), 1000)
    parts = partition(DatasetSpec(partition="uneven", clients=50), labels)
    sizes = [len(rows) for rows in parts]
    assert sum(sizes) == len(labels)
    assert 1.7 < max(sizes) / min(sizes) <= 2.02
    counts = [np.bincount(labels[rows], minlength=10) / len(rows) for rows in parts]
    assert np.abs(np.array(counts) - 0.1).max() < 0.1


@pytest.mark.parametrize("kind", ["uneven", "classes"])
def test_sizes_are_drawn_from_the_range_that_is_asked_for(kind: PartitionKind) -> None:
    labels = np.tile(np.arange(10), 1000)
    spec = DatasetSpec(partition=kind, clients=40, examples_per_client=(100, 250))
    sizes = [len(rows) for rows in partition(spec, labels)]
    assert min(sizes) >= 100
    assert max(sizes) <= 250
    assert len(set(sizes)) > 20


def test_clients_have_equally_many_examples_of_each_of_their_classes() -> None:
    labels = np.tile(np.arange(100), 500)  # as CIFAR-100, with FedFA's clients
    spec = DatasetSpec("cifar100", partition="classes", clients=100, classes_per_client=20,
                       examples_per_client=(250, 500))  # fmt: skip
    parts = partition(spec, labels)
    assert len(np.unique(np.concatenate(parts))) == sum(map(len, parts))
    held = np.array([np.bincount(labels[rows], minlength=100) for rows in parts])
    assert ((held > 0).sum(1) == 20).all()
    assert all(np.ptp(own[own > 0]) <= 1 for own in held)
    assert (held > 0).sum(0).min() > 10  # no class is left to few clients


@pytest.mark.parametrize("classes", [1, 2, 5, 10])
def test_each_client_has_as_many_classes_as_asked(classes: int) -> None:
    spec = DatasetSpec(partition="classes", clients=20, classes_per_client=classes)
    parts = partition(spec, LABELS)
    assert {len(np.unique(LABELS[rows])) for rows in parts} == {classes}


def test_classes_do_not_follow_the_number_of_the_client() -> None:
    spec = DatasetSpec(partition="classes", clients=10, classes_per_client=1)
    classes = [LABELS[rows[0]] for rows in partition(spec, LABELS)]
    assert sorted(classes) == list(range(10)) != classes


def test_max_train_limits_what_is_dealt_out() -> None:
    parts = partition(DatasetSpec(clients=4, max_train=100), LABELS)
    assert [len(rows) for rows in parts] == [25] * 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clients": 601}, "600 training examples are too few for 601 clients"),
        ({"clients": 10, "min_examples": 61}, "600 training examples are too few"),
        ({"partition": "dirichlet", "clients": 300, "alpha": 0.01}, "alpha 0.01"),
        ({"partition": "classes", "clients": 400, "classes_per_client": 9}, "_client 9"),
        ({"partition": "classes", "clients": 40, "min_examples": 15}, "min_examples 15"),
        (
            {"partition": "uneven", "clients": 10, "examples_per_client": (61, 61)},
            r"examples_per_client \[61, 61\] comes to 610 examples for 10 clients, of 600",
        ),
        (
            {
                "partition": "classes",
                "clients": 10,
                "classes_per_client": 1,
                "examples_per_client": (61, 61),
            },
            "comes to 610",
        ),
        (
            {
                "partition": "classes",
                "clients": 5,
                "classes_per_client": 1,
                "examples_per_client": (61, 61),
            },
            "ask for 61 examples of a class of which 60 are left",
        ),
    ],
)
def test_an_impossible_partition_says_why(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        partition(DatasetSpec(**settings), LABELS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "places"}, "unknown data set 'places'; choose one of: digits, mnist"),
        ({"partition": "random"}, "unknown partition 'random'; choose one of: iid, dirichlet"),
        ({"alpha": 0.0}, "alpha is 0.0: expected a finite number above 0"),
        ({"alpha": float("nan")}, "alpha is nan"),
        ({"classes_per_client": 11}, "classes_per_client is 11: expected 1 to 10"),
        ({"clients": 0}, "clients is 0: expected at least 1"),
        ({"max_train": 0}, "max_train is 0: expected at least 1"),
        ({"seed": -1}, "seed is -1"),
        ({"local_test": "all"}, "unknown local_test 'all'; choose one of: own, global"),
        ({"local_test_examples": 0}, "local_test_examples is 0: expected at least 1"),
        ({"examples_per_client": (1, 2)}, "but partition iid deals out all examples"),
        ({"partition": "uneven", "examples_per_client": (3, 2)}, "expected the fewest and the"),
        ({"partition": "uneven", "examples_per_client": (3,)}, "expected the fewest and the most"),
        ({"validation": 0.5, "test": 0.5}, "validation 0.5 and test 0.5 are no shares"),
        ({"test": -0.1}, "test -0.1"),
    ],
)
def test_a_wrong_setting_is_named_with_what_was_expected(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        DatasetSpec(**settings)


# Clients and the global test set


@pytest.mark.parametrize("kind", PARTITION_KINDS)
def test_digits_of_all_clients_and_the_test_set_are_the_whole_data_set(
    kind: PartitionKind,
) -> None:
    spec = spec_of(kind, clients=12, seed=3)
    clients = [client_data(spec, client) for client in range(spec.clients)]
    parts = [part for c in clients for part in (c.train, c.validation, c.test)]
    test = global_test(spec)
    assert sum(map(len, parts)) + len(test) == 1797
    assert all(len(client.train) > len(client.validation) for client in clients)
    everything = np.concatenate([pixels(part).numpy() for part in (*parts, test)])
    assert len(np.unique(everything.reshape(1797, -1), axis=0)) == 1797
    assert not set().union(*(as_set(part) for part in parts)) & as_set(test)


def test_digits_test_set_is_a_fifth_of_each_class_for_every_seed() -> None:
    test, other = (global_test(DatasetSpec(seed=seed)) for seed in (0, 1))
    assert torch.equal(pixels(test), pixels(other))
    shares = torch.bincount(test.labels) / torch.bincount(
        torch.from_numpy(np.concatenate([split.labels for split in load_images(DatasetSpec())]))
    )
    assert torch.allclose(shares, torch.full((10,), 0.2), atol=0.01)
    assert pixels(test).max() == 255


def test_global_test_can_be_limited() -> None:
    limited = global_test(DatasetSpec(max_test=50))
    assert len(limited) == 50
    assert as_set(limited) <= as_set(global_test(DatasetSpec()))


@pytest.mark.parametrize("kind", PARTITION_KINDS)
def test_a_client_can_test_on_the_test_split_with_the_classes_that_it_has(
    kind: PartitionKind,
) -> None:
    spec = spec_of(kind, clients=6, local_test="global", validation=0.2)
    own = replace(spec, local_test="own", test=0.0)
    for number in range(6):
        client, plain = client_data(spec, number), client_data(own, number)
        assert torch.equal(pixels(client.train), pixels(plain.train))
        assert torch.equal(pixels(client.validation), pixels(plain.validation))
        assert as_set(client.test) <= as_set(global_test(spec))
        assert len(as_set(client.test)) == len(client.test) <= 200
        all_labels = torch.cat((client.train.labels, client.validation.labels))
        has, tests = (
            torch.bincount(each, minlength=10) for each in (all_labels, client.test.labels)
        )
        assert torch.allclose(has / has.sum(), tests / tests.sum(), atol=1 / len(client.test))
        again = client_data(spec, number)
        assert torch.equal(pixels(client.test), pixels(again.test))
    fewer = client_data(replace(spec, local_test_examples=7), 0)
    assert len(fewer.test) <= 7
    assert sorted(as_set(all_clients(spec).test)) == sorted(
        set().union(*(as_set(client_data(spec, n).test) for n in range(6)))
    )


def test_a_class_that_the_test_split_lacks_is_left_out_of_a_client_s_test() -> None:
    rows = like_a_client(np.array([3, 3, 4, 5]), np.array([3, 3, 4, 4, 4]), DatasetSpec(), 0)
    assert rows.tolist()[:2] == [0, 1]  # as many of class 3 as there are, and half as many of 4
    assert len(rows) == 3


def test_a_device_tests_on_its_own_data_whatever_the_run_asks_of_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_parquet(tmp_path / "own", random_split(50))
    device = device_data(path, DatasetSpec("cifar10", test=0.1, local_test="global"))
    assert len(device.test) == 5
    assert "this device tests on its own data" in caplog.text


def test_an_unknown_client_is_refused() -> None:
    with pytest.raises(DataError, match="no client 10: expected 0 to 9"):
        client_data(DatasetSpec(clients=10), 10)


def test_a_device_parts_all_its_own_training_files_by_the_same_rule(tmp_path: Path) -> None:
    own = random_split(50)
    path = write_parquet(tmp_path / "own", own)
    spec = DatasetSpec("cifar10", validation=0.2, test=0.1)
    device = device_data(path, spec)
    assert [len(part) for part in (device.train, device.validation, device.test)] == [35, 10, 5]
    assert as_set(device.train) | as_set(device.validation) | as_set(device.test) == as_set(own)
    again = device_data(path, spec)
    assert torch.equal(pixels(device.train), pixels(again.train))


def test_a_device_that_has_few_classes_labels_them_as_all_others_do(tmp_path: Path) -> None:
    own = random_split(20)
    horses = ImageSplit(own.images[own.labels == 7], own.labels[own.labels == 7])
    path = write_image_folder(tmp_path / "own", horses, FACTS.classes)
    assert set(device_data(path, DatasetSpec("cifar10")).train.labels.tolist()) == {7}
