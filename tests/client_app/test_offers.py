"""A deployed device opens only files that its owner offers, whatever a server asks.

All tests use the real ClientApp, with real files.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Whitespace

from client_app import app
from client_app.offers import OFFLINE, NotOfferedError
from data.catalog import CATALOG
from data.spec import DatasetSpec
from protocol.attack import Sabotage
from protocol.environment import DEVICE
from protocol.reading import shown
from tests.support.devices import ask, profile, question
from tests.support.federations import Federate, federate_in
from tests.support.grids import InProcessGrid
from tests.support.image_files import random_split
from tests.support.own_files import reviews, write_csv, write_photo, write_photos

PART = "partition-id=0 num-partitions=4"
BUNDLED = "digits, docstrings, docstrings-words"
TEXTS = "model=bert-mini dataset=docstrings"
DIGITS = 289
"""Of 1437, which are not the server's to test on, a quarter are 359, and of these 4/5 to train on.
"""
WORDS = ("[PAD]", "[UNK]", "a", "fine", "film")


@pytest.fixture
def deployed(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process as a device's, which is kept off the network from its first message on."""
    monkeypatch.setenv(DEVICE, "1")
    for name in OFFLINE:
        monkeypatch.setenv(name, "0")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Record attempts to reach the network; a test that uses this must make none."""
    tried: list[Any] = []

    def refuse(*arguments: Any, **_: Any) -> None:
        tried.append(arguments[-1])
        raise OSError("no network here")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    yield tried
    assert tried == []


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    """A file of 100 images; where it is parted, a fifth are the server's to test on."""
    split = random_split(100)
    np.savez(tmp_path / "cifar.npz", x=split.images, y=split.labels)
    return tmp_path / "cifar.npz"


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return write_tokenizer(tmp_path / "model")


def write_tokenizer(folder: Path, words: tuple[str, ...] = WORDS, lower: bool = True) -> Path:
    made = Tokenizer(WordLevel({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    if lower:
        made.normalizer = Lowercase()
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    return folder


# --- data ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("deployed", "no_network")
def test_what_comes_with_nestfl_needs_no_offer_and_no_network() -> None:
    assert profile(question("dataset=digits"), PART).examples == DIGITS


@pytest.mark.usefixtures("deployed", "no_network")
@pytest.mark.parametrize("path", [None, "/etc", "/nowhere"])
def test_a_named_data_set_is_the_device_s_own_whatever_path_a_run_names(
    cifar: Path, path: str | None
) -> None:
    """With a partition its part of the training examples, else all of them: 4/5 are to train on."""
    asked = question("dataset=cifar10", path=path)
    assert profile(asked, f'{PART} data.cifar10="{cifar}"').examples == 16  # of 80, a quarter
    own = profile(asked, f'budget=1.0 data.cifar10="{cifar}"')
    assert (own.examples, own.partition, own.partitions) == (80, None, None)
    assert profile(asked, f'budget=1.0 data="{cifar}"').examples == 80


@pytest.mark.usefixtures("deployed")
def test_of_a_path_that_a_server_names_it_does_not_even_learn_whether_it_is_there(
    cifar: Path,
) -> None:
    told = []
    for path in (cifar, cifar.parent, cifar.parent / "nothing", "/etc/passwd"):
        with pytest.raises(NotOfferedError) as refused:
            ask(question("dataset=cifar10", path=str(path)), PART)
        told.append(str(refused.value).replace(shown(str(path)), "PATH"))
    assert set(told) == {
        "the run's cifar10 is at PATH, but this device opens no path that a server names, and "
        f"offers {BUNDLED}"
    }
    with pytest.raises(NotOfferedError, match="the run's digits is at '/etc'"):
        ask(question("dataset=digits", path="/etc"), PART)


@pytest.mark.usefixtures("deployed", "no_network")
@pytest.mark.parametrize("name", [name for name, facts in CATALOG.items() if facts.hub])
def test_nothing_is_downloaded_that_its_owner_does_not_allow(name: str) -> None:
    dataset = DatasetSpec(name, classes_per_client=1)
    with pytest.raises(NotOfferedError) as refused:
        ask(replace(question(), dataset=dataset), f'{PART} allow="package"')
    assert str(refused.value) == (
        f"the run is on {name}, which would have to be downloaded, but the node config of this "
        f'device does not say allow="hub"; it offers {BUNDLED}'
    )


@pytest.mark.usefixtures("deployed")
def test_what_its_owner_allows_is_asked_of_hugging_face(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def fetch(*names: str, split: Any) -> None:
        asked.append(names)
        raise OSError("no network here")

    monkeypatch.setattr("datasets.load_dataset", fetch)
    with pytest.raises(ValueError, match="cifar10 could not be fetched as uoft-cs/cifar10"):
        ask(question("dataset=cifar10"), f'{PART} allow="hub"')
    assert asked == [("uoft-cs/cifar10",)]
    assert os.environ["HF_HUB_OFFLINE"] == "0"


@pytest.mark.usefixtures("deployed")
@pytest.mark.parametrize(
    ("config", "offers"),
    [
        ('data.cifar10="/c" data.ag-news="/a"', "ag-news, cifar10$"),
        ("budget=1.0", r"none: expected data=PATH, data\.NAME=PATH, or both partition-id and num"),
    ],
)
def test_a_run_on_another_data_set_is_told_what_the_device_offers(config: str, offers: str) -> None:
    with pytest.raises(NotOfferedError, match=f"on digits, but this device offers {offers}"):
        ask(question("dataset=digits"), config)


@pytest.mark.usefixtures("deployed")
def test_what_is_wrong_with_a_device_s_files_stays_in_its_own_log(tmp_path: Path) -> None:
    """A complaint may quote what they hold: the server could ask until it has read them."""
    (tmp_path / "own.csv").write_text('text,label\n"a secret",\n')
    work = question("model=bert-mini dataset=sst2")
    with pytest.raises(NotOfferedError) as refused:
        ask(work, f'budget=1.0 data="{tmp_path}"')
    assert str(refused.value) == (
        "this device cannot use its files of sst2; why is told in its own log"
    )
    assert "a secret" in str(refused.value.__cause__)  # as Flower logs it, on the device


@pytest.mark.usefixtures("deployed")
def test_a_server_is_told_why_its_parts_cannot_be_dealt(cifar: Path) -> None:
    with pytest.raises(ValueError, match="80 training examples are too few for 81 clients"):
        ask(
            question("dataset=cifar10"),
            f'partition-id=0 num-partitions=81 data.cifar10="{cifar}"',
        )


# --- tokenizers ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("deployed", "no_network")
@pytest.mark.parametrize("named", ["null", "hashed"])
def test_hashed_words_need_nothing(named: str) -> None:
    assert profile(question(f"{TEXTS} dataset.tokenizer={named}"), PART).examples > 100


@pytest.mark.usefixtures("deployed")
def test_a_device_uses_its_own_tokenizer_wherever_the_run_s_is(
    tokenizer: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (same := tmp_path / "elsewhere").mkdir()
    (same / "tokenizer.json").write_bytes((tokenizer / "tokenizer.json").read_bytes())
    work = question(f"{TEXTS} dataset.tokenizer={tokenizer}")
    assert profile(work, f'{PART} tokenizer="{same}"').examples > 100
    assert "the run's tokenizer is" in caplog.text
    caplog.clear()
    profile(work, f'{PART} tokenizer="{tokenizer}"')
    assert "the run's tokenizer is" not in caplog.text


@pytest.mark.usefixtures("deployed")
@pytest.mark.parametrize(("words", "lower"), [((*WORDS, "no"), True), (WORDS, False)])
def test_a_device_whose_tokenizer_is_another_one_is_left_out(
    tokenizer: Path, tmp_path: Path, words: tuple[str, ...], lower: bool
) -> None:
    """Be it of other words, or of the same ones in another way."""
    other = write_tokenizer(tmp_path / "other", words, lower)
    work = question(f"{TEXTS} dataset.tokenizer={tokenizer}")
    with pytest.raises(NotOfferedError, match="this device's tokenizer is another than the run's"):
        ask(work, f'{PART} tokenizer="{other}"')


@pytest.mark.usefixtures("deployed", "no_network")
@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("/etc/passwd", "opens no path that a server names, and its node config names no token"),
        ("~/model", "opens no path that a server names"),
        ("google-bert/bert-base-uncased", "opens no path that a server names"),
        ("hub:google-bert/bert-base-uncased", 'does not say allow="hub"; nor does its node config'),
        ("package:antigravity", 'does not say allow="package"; nor does its node config name'),
    ],
)
def test_a_tokenizer_that_a_server_names_is_not_opened(named: str, reason: str) -> None:
    with pytest.raises(NotOfferedError, match=reason):
        ask(question(TEXTS, tokenizer=named), PART)


@pytest.mark.usefixtures("deployed")
def test_what_a_package_holds_is_used_where_its_owner_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tokenizer(tmp_path / "held_words")
    (tmp_path / "held_words" / "config.json").touch()
    (tmp_path / "held_words" / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    work = question(f"{TEXTS} dataset.tokenizer=package:held_words")
    assert work.vocabulary is not None
    assert profile(work, f'{PART} allow="package"').examples > 100
    assert profile(work, f'{PART} tokenizer="package:held_words"').examples > 100


@pytest.mark.usefixtures("deployed")
def test_what_is_wrong_with_a_device_s_tokenizer_stays_in_its_own_log(tokenizer: Path) -> None:
    work = question(f"{TEXTS} dataset.tokenizer={tokenizer}")
    with pytest.raises(
        NotOfferedError, match=r"^this device cannot use its tokenizer; why is told"
    ):
        ask(work, f'{PART} tokenizer="/nowhere"')


# --- all else ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("deployed")
@pytest.mark.parametrize("kind", ["query", "query.method", "query.statistics", "train"])
def test_a_device_attacks_nobody(kind: str) -> None:
    with pytest.raises(NotOfferedError, match="attacks nobody"):
        ask(replace(question(), sabotage=Sabotage(2.0)), PART, kind)


@pytest.mark.usefixtures("deployed")
def test_a_device_compiles_nothing_unless_its_owner_allows_it() -> None:
    work = question("train.compile=true")
    with pytest.raises(NotOfferedError, match=r'train\.compile is true, .* say allow="compile"'):
        ask(work, PART)
    assert profile(work, f'{PART} allow="compile"').examples == DIGITS


@pytest.mark.usefixtures("deployed")
@pytest.mark.parametrize("name", ["os:system", "strategies.methods.fedavg:FedAvg", "../fedavg", ""])
def test_a_method_is_one_of_ours_and_nothing_else_that_can_be_imported(name: str) -> None:
    with pytest.raises(ValueError, match=f"unknown strategy '{name}'; choose from decoupled, de"):
        ask(replace(question(), method=name), PART, "query.method")


@pytest.mark.usefixtures("deployed")
@pytest.mark.parametrize(
    "kind",
    ["query", "query.method", "query.statistics", "train", "evaluate"],
)
@pytest.mark.parametrize("config", [PART, f"{PART} dta=1"])
def test_whatever_is_asked_goes_by_the_owner_s_word_first(kind: str, config: str) -> None:
    """There are no arrays in these messages: the device never gets so far as to miss them."""
    with pytest.raises(ValueError, match=r"opens no path that|'dta', which is no key"):
        ask(question("dataset=cifar10", path="/etc"), config, kind)


def test_hugging_face_s_libraries_stay_off_the_network_in_a_new_process() -> None:
    """As each message to a deployed device is answered in one."""
    program = """
from client_app.node_config import NodeConfig
from client_app.offers import granted
from protocol.work import Work
from data.spec import DatasetSpec
from models import Slice, Task
from protocol.train_settings import TrainSettings
node = NodeConfig.read({"partition-id": 0, "num-partitions": 1})
granted(Work(Task("resnet20"), Slice(), DatasetSpec(), TrainSettings()), node)
import datasets, huggingface_hub
print(datasets.config.HF_HUB_OFFLINE, huggingface_hub.constants.HF_HUB_OFFLINE)
"""
    offline = dict.fromkeys(OFFLINE, "0")
    for deployed, expected in ({DEVICE: "1"}, "True True"), ({}, "False False"):
        said = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, **offline, **deployed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
        )
        assert said.stdout.strip() == expected, said.stderr


# --- runs ----------------------------------------------------------------------------------------


@pytest.fixture
def federate(tmp_path: Path) -> Federate:
    (tmp_path / "runs").mkdir()
    return federate_in(tmp_path / "runs")


CIFAR = "dataset=cifar10 dataset.max_train=null dataset.max_test=null rounds=1"


def test_a_run_on_devices_ends_with_the_weights_of_a_simulation(
    federate: Federate, cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server tests on its own file, devices train on their parts of theirs."""
    run = f"{CIFAR} dataset.path={cifar}"
    simulated, _ = federate(run)
    own = tmp_path / "own.npz"
    own.write_bytes(cifar.read_bytes())
    monkeypatch.setenv(DEVICE, "1")
    grid = InProcessGrid(4)
    for context in grid.contexts.values():
        context.node_config["data.cifar10"] = str(own)
    devices, lines = federate(run, grid)
    assert lines[0]["clients"]["replied"] == 4
    assert devices.state.keys() == simulated.state.keys()
    assert all(devices.state[name].equal(t) for name, t in simulated.state.items())


def test_a_device_that_offers_no_such_data_is_left_out_with_its_reason(
    federate: Federate, cifar: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DEVICE, "1")
    grid = InProcessGrid(4)
    for context in list(grid.contexts.values())[1:]:
        context.node_config["data.cifar10"] = str(cifar)
    strategy, lines = federate(f"{CIFAR} dataset.path={cifar}", grid)
    assert sorted(strategy.clients) == [1, 2, 3]
    (reason,) = lines[0]["left_out"].values()
    assert "but this device opens no path that a server names, and offers digits" in reason


def test_a_simulated_client_reads_the_path_that_the_run_names(cifar: Path) -> None:
    assert profile(question("dataset=cifar10", path=str(cifar)), PART).examples == 16


def test_simulated_clients_attack_and_compile_where_they_are_told_to() -> None:
    work = question("train.compile=true")
    assert profile(replace(work, sabotage=Sabotage(2.0)), PART).examples == DIGITS


# --- data of one's own ---------------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos", {"cat": 10, "dog": 10})


@pytest.mark.usefixtures("deployed", "no_network")
@pytest.mark.parametrize("key", ["data.folder", "data"])
def test_a_device_s_own_photos_are_taken_whatever_path_the_run_names(
    photos: Path, tmp_path: Path, key: str
) -> None:
    own = write_photos(tmp_path / "own photos", {"dog": 10})
    asked = question(f"dataset=folder dataset.path={photos}")
    assert profile(asked, f'budget=1.0 {key}="{own}"').examples == 8
    with pytest.raises(NotOfferedError, match="but this device opens no path that a server names"):
        ask(asked, "partition-id=0 num-partitions=4")
    assert profile(asked, f'{PART} data.folder="{photos}"').examples == 4  # of 16, a quarter


@pytest.mark.usefixtures("deployed")
def test_a_device_with_a_class_that_the_run_does_not_know_tells_numbers_and_no_names(
    photos: Path, tmp_path: Path
) -> None:
    own = write_photos(tmp_path / "own", {"cat": 3, "secret": 2})
    with pytest.raises(NotOfferedError) as refused:
        ask(question(f"dataset=folder dataset.path={photos}"), f'budget=1.0 data.folder="{own}"')
    assert str(refused.value) == (
        "this device cannot use its files of folder: 2 of 5 examples are of 1 classes that are "
        "none of the run's 2; why is told in its own log"
    )
    assert "secret/00.png is of the class 'secret'" in str(refused.value.__cause__)


@pytest.mark.usefixtures("deployed")
def test_an_unexpected_error_of_a_devices_files_is_traced_in_its_own_log(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(app, "device_data", broken)
    with pytest.raises(NotOfferedError, match="why is told in its own log"):
        ask(question(f"dataset=folder dataset.path={photos}"), f'budget=1.0 data="{photos}"')
    assert caplog.messages == ["this device cannot use its files of folder"]
    assert "ZeroDivisionError: a bug" in caplog.text


@pytest.mark.usefixtures("deployed")
def test_of_a_device_s_broken_table_the_server_learns_nothing(tmp_path: Path) -> None:
    run = write_csv(tmp_path / "run.csv", reviews(30))
    columns = f"dataset.path={run} dataset.text=body dataset.label=stars"
    own = write_csv(tmp_path / "own.csv", [{"body": "a secret", "stars": ""}])
    with pytest.raises(NotOfferedError, match=r"its files of table; why is told in its own log$"):
        ask(
            question(f"dataset=table model=bert-mini {columns}"),
            f'budget=1.0 data.table="{own}"',
        )


@pytest.mark.usefixtures("deployed")
@pytest.mark.parametrize("part", ["budget=1.0", PART])
def test_a_table_opens_no_image_but_those_that_its_owner_offers(
    photos: Path, tmp_path: Path, part: str
) -> None:
    """They lie below the folder of the table, after links were followed."""
    own, asked = tmp_path / "own", question(f"dataset=folder dataset.path={photos}")
    write_photo(tmp_path / "secret.png")
    rows = [{"image": f"{n}.png", "label": "cat" if n % 2 else "dog"} for n in range(20)]
    for row in rows:
        write_photo(own / row["image"])
    config = f'{part} data.folder="{write_csv(own / "images.csv", rows)}"'
    assert profile(asked, config).examples == (4 if part == PART else 16)
    (own / "link.png").symlink_to(tmp_path / "secret.png")
    for number, path in enumerate(("../secret.png", "link.png")):
        table = write_csv(own / f"{number}.csv", [*rows, {"image": path, "label": "cat"}])
        with pytest.raises(NotOfferedError, match=r"files of folder; why is told in its own") as e:
            ask(asked, f'{part} data.folder="{table}"')
        assert f"{table}, row 22 names {path}, which is outside of" in str(e.value.__cause__)
