"""Examples to distil with: what the server keeps, other data sets, and files without labels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from data.catalog import DataError
from data.clients import client_rows, server_data
from data.examples import ImageData, TextData
from data.image_files import fitted
from data.partition import server_rows
from data.spec import DatasetSpec
from data.tokens import encode
from data.unlabelled import UnlabelledSpec, server_parts, unlabelled
from tests.support.image_files import random_split, write_image_folder, write_parquet

DIGITS = DatasetSpec("digits", clients=4, server=0.1)


def images_of(spec: UnlabelledSpec, run: DatasetSpec) -> ImageData:
    found = unlabelled(spec, run)
    assert isinstance(found, ImageData)
    return found


# --- what the server keeps ---------------------------------------------------------------------


@pytest.mark.parametrize("max_train", [None, 300])
def test_no_client_has_what_the_server_keeps(max_train: int | None) -> None:
    spec = replace(DIGITS, max_train=max_train)
    kept = server_rows(spec, 1437)
    assert len(kept) == (144 if max_train is None else 30)
    dealt = np.concatenate(client_rows(spec))
    assert len(dealt) + len(kept) == (max_train or 1437)
    assert not set(dealt) & set(kept)


def test_a_server_that_keeps_nothing_leaves_clients_as_they_were() -> None:
    plain = client_rows(replace(DIGITS, server=None))
    none = client_rows(replace(DIGITS, server=0.0))
    assert all(np.array_equal(one, other) for one, other in zip(plain, none, strict=True))
    assert len(server_data(replace(DIGITS, server=None))) == 0


def test_validation_examples_are_not_distilled_with() -> None:
    validation, rest = server_parts(DIGITS, 0.25)
    assert (len(validation), len(rest)) == (36, 108)
    assert isinstance(validation, ImageData)
    distilled = unlabelled(UnlabelledSpec(), DIGITS, 0.25)
    assert isinstance(distilled, ImageData)
    assert isinstance(rest, ImageData)
    assert torch.equal(distilled.images, rest.images)
    assert torch.equal(validation.labels, server_data(DIGITS).labels[:36])


def test_a_share_is_checked() -> None:
    with pytest.raises(DataError, match=r"server is 1: expected 0 or more, and less than 1"):
        DatasetSpec(server=1)


# --- other data sets ---------------------------------------------------------------------------


def test_labels_are_numbers_of_examples_and_those_of_the_files_are_gone() -> None:
    found = images_of(UnlabelledSpec(), DIGITS)
    assert found.labels.tolist() == list(range(144))


def test_colour_becomes_grey_of_the_run_s_size_and_is_normalised_as_its_own(
    tmp_path: Path, cache_folder: Path
) -> None:
    split = random_split(30)
    split.images[0] = np.array([255, 0, 0])[:, None, None]  # red
    split.images[1] = 200  # grey, in three channels
    folder = write_parquet(tmp_path / "cifar", split, random_split(10, seed=1))
    found = images_of(UnlabelledSpec("cifar10", str(folder)), DIGITS)
    assert found.images.shape == (30, 1, 8, 8)
    assert found.images[0].unique().tolist() == [76]  # 0.299 * 255
    assert found.images[1].unique().tolist() == [200]
    inputs, numbers = next(found.batches(30))
    expected = (found.images.double() / 255 - 0.3053) / 0.3760
    torch.testing.assert_close(inputs.double(), expected, rtol=1e-5, atol=1e-5)
    assert numbers.tolist() == list(range(30))


def test_grey_becomes_colour_and_sizes_are_those_of_the_run() -> None:
    found = images_of(UnlabelledSpec("digits", max_examples=50), DatasetSpec("cifar10"))
    assert found.images.shape == (50, 3, 32, 32)
    assert torch.equal(found.images[:, 0], found.images[:, 2])
    assert found.facts.name == "cifar10"


def test_scaling_keeps_the_mean_and_changes_nothing_where_all_fits() -> None:
    images = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    assert fitted(images, 3, 32) is images
    small = fitted(images, 3, 8)
    means = [each.float().mean((2, 3)) for each in (images, small)]
    torch.testing.assert_close(*means, rtol=0, atol=4)
    flat = fitted(torch.full((1, 1, 8, 8), 77, dtype=torch.uint8), 3, 20)
    assert flat.unique().tolist() == [77]


def test_texts_are_tokenised_as_the_run_s(tmp_path: Path, cache_folder: Path) -> None:
    rows = ["a fine film,1", "a dull one that goes on and on,0"] * 10
    (tmp_path / "sst2-train.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    run = DatasetSpec("docstrings", max_tokens=6)
    found = unlabelled(UnlabelledSpec("sst2", str(tmp_path)), run)
    assert isinstance(found, TextData)
    expected = {tuple(row) for row in encode([r.split(",")[0] for r in rows], None, 6).tolist()}
    assert {tuple(row) for row in found.tokens.tolist()} == expected
    assert found.facts.name == "docstrings"


def test_some_of_many_are_drawn_by_the_run_s_seed() -> None:
    spec = UnlabelledSpec("digits", max_examples=20)
    one, again, other = (images_of(spec, DatasetSpec("mnist", seed=seed)) for seed in (0, 0, 1))
    assert torch.equal(one.images, again.images)
    assert not torch.equal(one.images, other.images)
    assert one.labels.tolist() == list(range(20))


# --- files -------------------------------------------------------------------------------------


def test_files_may_have_any_size_and_labels_of_any_kind(tmp_path: Path) -> None:
    split = random_split(3)
    write_image_folder(tmp_path / "heap", split, ("what", "ever", "else", *"abcdefg"))
    Image.new("L", (50, 31), 9).save(tmp_path / "heap" / "last.png")
    found = images_of(UnlabelledSpec("files", str(tmp_path / "heap")), DIGITS)
    assert found.images.shape == (4, 1, 8, 8)
    (grey,) = (image for image in found.images if bool((image == 9).all()))
    assert grey.shape == (1, 8, 8)


def test_labels_of_files_are_not_even_read(tmp_path: Path) -> None:
    (tmp_path / "texts.csv").write_text("text,label\nsome words,nonsense\nother words,\n")
    found = unlabelled(UnlabelledSpec("files", str(tmp_path)), DatasetSpec("docstrings"))
    assert found.labels.tolist() == [0, 1]


# --- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "run", "told"),
    [
        (UnlabelledSpec("sst2"), "digits", "name is sst2, which a network for digits cannot read"),
        (UnlabelledSpec("cifar10"), "sst2", "cannot read: choose from own, files, docstrings, ss"),
        (UnlabelledSpec("wikitext2"), "digits", "name is wikitext2, which a network for digits"),
        (UnlabelledSpec(), "wikitext2", "wikitext2 is a running text: expected a data set of"),
        (UnlabelledSpec("counterpart"), "digits", "which cifar10, cifar100, sst2, ag-news have"),
        (
            UnlabelledSpec("digits"),
            "digits",
            "whose training examples are the clients'",
        ),
    ],
)
def test_what_a_network_cannot_read_is_refused_with_the_choices(
    spec: UnlabelledSpec, run: str, told: str
) -> None:
    with pytest.raises(DataError, match=told):
        spec.source(DatasetSpec(run))


def test_specs_that_make_no_sense_are_refused() -> None:
    with pytest.raises(DataError, match=r"unknown name 'cifar'; choose from own, counterpart, fil"):
        UnlabelledSpec("cifar")
    with pytest.raises(DataError, match="path is null: expected a folder or a file"):
        UnlabelledSpec("files")
    with pytest.raises(DataError, match="path is x: expected null, since name is own"):
        UnlabelledSpec("own", "x")
    with pytest.raises(DataError, match="max_examples is 1: expected at least 2"):
        UnlabelledSpec("own", max_examples=1)
    with pytest.raises(DataError, match="0 examples to distil with in own"):
        unlabelled(UnlabelledSpec(), replace(DIGITS, server=0.0))
