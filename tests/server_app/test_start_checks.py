"""A run's start is checked before any process: an error is one line, and no file is left."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from data.cache import cache_dir
from server_app import app as server
from server_app.config.composing import ConfigError, compose
from server_app.start_checks import check
from tests.support.grids import InProcessGrid
from tests.support.own_files import write_photos

SMALL = "fleet=small rounds=1"


def test_what_is_found_is_told() -> None:
    assert check(compose(SMALL)).lines() == [
        "network: resnet20, 9 units, scalefl",
        "level 1: 31,525 parameters, 0.8 M MACs, 437.3 kB to train, 0.116 of the full parameters, "
        "1 client",
        "level 2: 70,472 parameters, 1.1 M MACs, 914.6 kB to train, 0.259 of the full parameters, "
        "1 client",
        "level 3: 141,350 parameters, 1.5 M MACs, 1.8 MB to train, 0.519 of the full parameters, "
        "1 client",
        "level 4: 272,186 parameters, 2.5 M MACs, 3.4 MB to train, 1 of the full parameters, "
        "1 client",
        "data:    digits, as published, 10 classes, 360 examples to test on",
        "clients: 4, 288 to 289 examples each (iid), 4 a round",
    ]


def test_what_clients_choose_is_not_known_yet() -> None:
    lines = check(compose(f"{SMALL} strategy=fedfa model=resnet18")).lines()
    assert lines[1] == "levels:  what the clients choose when they come"


def test_as_many_clients_as_there_are_nodes_are_dealt_to() -> None:
    dealt = check(compose(SMALL), nodes=8).examples
    assert len(dealt) == 8
    assert set(dealt) <= {143, 144, 145}  # 1437 in eight, less a tenth and a tenth


def test_a_run_that_is_beyond_its_last_round_does_not_go_on(tmp_path: Path) -> None:
    started = compose(
        f"{SMALL} rounds=2 engine=local output={tmp_path} name=run dataset.max_train=80"
    )
    server.run(InProcessGrid(4), started)
    for rounds in (2, 3):
        assert check(compose(f"resume={tmp_path}/run rounds={rounds}")).start is not None
    with pytest.raises(ConfigError, match="rounds is 1, but the run has come to round 2: expected"):
        check(compose(f"resume={tmp_path}/run rounds=1"))


def test_weights_that_do_not_fit_are_told_of(tmp_path: Path) -> None:
    file = tmp_path / "weights.pt"
    torch.save({"other": torch.zeros(1)}, file)
    with pytest.raises(ValueError, match="weights"):
        check(compose(f"{SMALL} model.weights={file}"))


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ("dataset=cifar10 dataset.path=/no/where", "/no/where does not exist: no cifar10 there"),
        ("model.weights=/no/where", "model.weights: /no/where does not exist"),
        (
            "strategy=feddf strategy.unlabelled.name=files strategy.unlabelled.path=/no/where",
            "/no/where",
        ),
        ("dataset.min_examples=1000", "1437 training examples are too few for 4 clients"),
        ("strategy.tolerance=0", "no split costs"),
        (
            "model=bert-mini dataset=docstrings dataset.tokenizer=/no/where",
            "no tokenizer /no/where|/no/where",
        ),
    ],
)
def test_what_is_not_there_or_cannot_be_done_is_told_of(overrides: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        check(compose(f"{SMALL} {overrides}"))


def test_texts_with_tokens_that_the_network_does_not_know_are_told_of() -> None:
    known = f"{SMALL} model=bert-mini dataset=docstrings train=bert"
    with pytest.raises(ValueError, match="is not in this BERT's vocabulary of 100"):
        check(compose(f"{known} model.vocabulary=100"))


def test_what_a_run_records_of_its_own_data_is_read_by_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NESTFL_CACHE", str(tmp_path / "cache"))
    write_photos(tmp_path / "photos", {"cat": 8, "dog": 8})
    check(compose(f"{SMALL} dataset=folder dataset.path={tmp_path}/photos dataset.image_size=32"))
    assert list(cache_dir().glob("digest-*"))
