"""Texts: tokens that all machines agree on, parted as images are, and a federation that reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from data import splits, tokens
from data.catalog import TEXTS, DataError
from data.clients import client_data, client_rows, deal_of, device_data, global_test
from data.examples import Examples, TextData, TextSplit
from data.inputs import read_inputs
from data.spec import PARTITION_KINDS, DatasetSpec, PartitionKind
from data.splits import load_texts
from data.text_files import read_docstrings
from data.tokens import HASHED_WORDS, encode, identity
from models import Slice, Task
from protocol.work import Work
from server_app import app as server
from server_app.building import strategy_of
from server_app.config.composing import ConfigError, compose
from server_app.config.weights import read_weights
from server_app.record.run_record import RunRecord
from tests.support.grids import InProcessGrid
from tests.support.toy_training import EPOCH
from training.fitting import fit
from training.local_training import plain_loss
from training.testing import evaluate

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "fine", "film", "no"]


@pytest.fixture(autouse=True, scope="module")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One for all tests here: reading docstrings takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NESTFL_CACHE", str(tmp_path_factory.mktemp("cache")))
        forget_loaded()
        yield
    forget_loaded()


def forget_loaded() -> None:
    splits._texts.cache_clear()
    splits._device_texts.cache_clear()
    deal_of.cache_clear()


def texts(examples: Examples) -> torch.Tensor:
    assert isinstance(examples, TextData)
    return examples.tokens


def as_list(examples: Examples) -> list[tuple[tuple[int, ...], int]]:
    rows = [tuple(row[row != 0].tolist()) for row in texts(examples)]
    return sorted(zip(rows, examples.labels.tolist(), strict=True))


def numbered(rows: int, label: int = 0, column: str = "sentence") -> datasets.Dataset:
    columns = {column: [f"text number {row}" for row in range(rows)], "label": [label] * rows}
    return datasets.Dataset.from_dict(columns)


def mixed(rows: int, column: str = "sentence", first: int = 0) -> datasets.Dataset:
    columns = {column: [f"text number {row + first}" for row in range(rows)]}
    return datasets.Dataset.from_dict(columns | {"label": [row % 2 for row in range(rows)]})


@pytest.fixture
def word_tokenizer(tmp_path: Path) -> Path:
    """A folder with a tokenizer such as pre-trained models have."""
    model = WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_padding(length=50)  # to be overruled
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


# Tokens


def test_hashed_words_are_the_same_on_every_machine() -> None:
    assert encode(["A fine film!", "no"], None, 16).tolist() == [
        [1, 2280, 2824, 3995, 2471, 2],
        [1, 2989, 2, 0, 0, 0],
    ]
    assert encode(["word " * 20], None, 8).shape == (1, 8)
    assert encode([], None, 8).shape == (0, 0)


def test_a_pre_trained_tokenizer_is_used_as_it_is_but_for_its_padding(word_tokenizer: Path) -> None:
    expected = [[2, 4, 5, 6, 3], [2, 7, 1, 3, 0]]
    for place in (word_tokenizer, word_tokenizer / "tokenizer.json"):
        assert encode(["a fine film", "no idea"], str(place), 16).tolist() == expected
    assert encode(["a fine film"], str(word_tokenizer), 4).tolist() == [[2, 4, 5, 3]]


def test_a_tokenizer_is_told_from_others_by_what_it_does_not_by_its_file(
    word_tokenizer: Path, tmp_path: Path
) -> None:
    file = word_tokenizer / "tokenizer.json"
    described = json.loads(file.read_text())

    def with_change(**changes: Any) -> str | None:
        (tmp_path / "other.json").write_text(json.dumps(described | changes, indent=4))
        return identity(str(tmp_path / "other.json"))

    assert identity(None) is identity("hashed") is None
    assert identity(str(word_tokenizer)) == identity(str(file)) == with_change()
    assert with_change(padding=None) == identity(str(file))  # which is overruled anyway
    cut = {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    assert with_change(truncation=cut) == identity(str(file))
    assert with_change(post_processor=None) != identity(str(file))
    longer = {**described["model"], "vocab": {**described["model"]["vocab"], "yes": 8}}
    assert with_change(model=longer) != identity(str(file))


def test_to_find_what_a_package_holds_nothing_is_imported(
    word_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (tmp_path / "imported_by_nobody", tmp_path / "imported_by_nobody" / "inner"):
        folder.mkdir()
        (folder / "__init__.py").write_text("raise RuntimeError('imported')")
        (folder / "config.json").touch()
        (folder / "tokenizer.json").write_bytes((word_tokenizer / "tokenizer.json").read_bytes())
    monkeypatch.syspath_prepend(str(tmp_path))
    assert encode(["a fine film"], "package:imported_by_nobody", 8).tolist() == [[2, 4, 5, 6, 3]]
    for name in ("imported_by_nobody.inner", ".inner", "", "../imported_by_nobody"):
        with pytest.raises(DataError, match="no such package is installed, or it holds no pre-"):
            encode(["a"], f"package:{name}", 8)


def test_a_name_on_hugging_face_is_no_path(
    word_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    word_tokenizer.rename(tmp_path / "hub:words")
    monkeypatch.chdir(tmp_path)
    assert tokens.local_path("hub:words") is None
    assert tokens.local_path("./hub:words") == tmp_path / "hub:words"


def test_a_wrong_tokenizer_says_what_was_expected(
    word_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match=r"no tokenizer\.json in"):
        encode(["a"], str(tmp_path), 8)
    with pytest.raises(DataError, match="package:nothing_of_that_name: no such package"):
        encode(["a"], "package:nothing_of_that_name", 8)
    file = word_tokenizer / "tokenizer.json"
    described = json.loads(file.read_text())
    described["model"]["vocab"] |= {"[PAD]": 1, "[UNK]": 0}
    file.write_text(json.dumps(described))
    with pytest.raises(DataError, match=r"has '\[UNK\]' as its token 0: expected its padding"):
        encode(["a"], str(file), 8)
    file.write_text("{")
    with pytest.raises(
        DataError, match=r"expected a folder with tokenizer\.json, hub:NAME of a mod"
    ):
        encode(["a"], str(file), 8)


# Files


def test_files_of_the_named_data_set_are_read_from_a_folder_of_several(tmp_path: Path) -> None:
    mixed(30).to_parquet(tmp_path / "sst2-train.parquet")
    mixed(10, first=30).to_parquet(tmp_path / "sst2-test.parquet")
    mixed(5, first=40).to_parquet(tmp_path / "sst2-validation.parquet")
    mixed(20, "text").to_parquet(tmp_path / "ag_news-train-subset.parquet")
    mixed(6, "text", 20).to_parquet(tmp_path / "ag_news-test.parquet")
    for name, sizes in {"sst2": (30, 10), "ag-news": (20, 6)}.items():
        found = load_texts(DatasetSpec(name, path=str(tmp_path)))
        assert tuple(len(split.labels) for split in found) == sizes
        written = [f"text number {row}" for row in range(sizes[0])]
        assert np.array_equal(found.train.tokens, encode(written, None, 128))


def test_a_test_set_without_labels_gives_way_to_the_validation_set(tmp_path: Path) -> None:
    mixed(30).to_parquet(tmp_path / "train-00000-of-00001.parquet")
    numbered(10, label=-1).to_parquet(tmp_path / "test-00000-of-00001.parquet")
    mixed(6, first=50).to_parquet(tmp_path / "validation-00000-of-00001.parquet")
    test = global_test(DatasetSpec("sst2", path=str(tmp_path)))
    assert test.labels.tolist() == [0, 1] * 3


def test_a_set_without_test_files_gives_up_a_fifth_of_itself(tmp_path: Path) -> None:
    mixed(50).to_csv(tmp_path / "reviews.csv")
    found = load_texts(DatasetSpec("sst2", path=str(tmp_path)))
    assert [len(split.labels) for split in found] == [40, 10]


def test_a_device_parts_its_own_texts_and_may_name_classes(tmp_path: Path) -> None:
    rows = [f'"the {row}th, said\nthey",{("Negative", "positive")[row % 2]}' for row in range(20)]
    (tmp_path / "own.csv").write_text("\n".join(["text,label", *rows]))
    spec = DatasetSpec("sst2", validation=0.2, test=0.1)
    device = device_data(tmp_path / "own.csv", spec)
    assert [len(part) for part in (device.train, device.validation, device.test)] == [14, 4, 2]
    together = sorted(row for part in (device.train, device.validation, device.test)
                      for row in as_list(part))  # fmt: skip
    expected = encode([f"the {row}th, said they" for row in range(20)], None, 128)
    labels = np.arange(20) % 2
    assert together == as_list(TextData.of(TextSplit(expected, labels), TEXTS["sst2"]))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"words": ["a"], "label": [0]}, "no column text or sentence; the columns are: words, lab"),
        ({"text": ["a"]}, "no column label; the columns are: text"),
        ({"text": ["a", None], "label": [0, 1]}, "row 1 holds the text None"),
        ({"text": ["a"], "label": [2]}, "label 2: expected 0 to 1, the classes of sst2"),
        ({"text": ["a"], "label": [-2]}, "label -2: expected 0 to 1"),
        ({"text": ["a"], "label": ["so"]}, "'so' is no class of sst2"),
        ({"text": ["a", "b"], "label": [0, -1]}, "2 texts of sst2, 1 of them without a label"),
    ],
)
def test_wrong_tables_say_why(columns: dict[str, Any], message: str, tmp_path: Path) -> None:
    datasets.Dataset.from_dict(columns).to_parquet(tmp_path / "train.parquet")
    with pytest.raises(DataError, match=message):
        device_data(tmp_path, DatasetSpec("sst2"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text,label\na,0\nb,so\n", ": row 3: 'so' is no class of sst2"),
        ("text,label\na,0\nb,7\n", ": row 3: label 7: expected 0 to 1"),
        ("text,label\n1,0\n", ": row 2 holds the text 1 and the label 0"),
        (
            "text,label\na,0\nb,1,2\n",
            " cannot be read: CSV parse error: Row #3: Expected 2 columns",
        ),
        ("words,label\na,0\n", ": no column text or sentence; the columns are: words, label"),
    ],
)
def test_a_wrong_csv_file_is_told_with_its_row(content: str, message: str, tmp_path: Path) -> None:
    right, wrong = tmp_path / "train-0.csv", tmp_path / "train-1.csv"
    right.write_text("text,label\nfine,1\n")
    wrong.write_text(content)
    for read in (device_data, read_inputs):
        with pytest.raises(DataError) as raised:
            read(tmp_path, DatasetSpec("sst2"))
        assert f"train-1.csv{message}" in str(raised.value)


def test_wrong_files_say_why(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist: no sst2 there"):
        load_texts(DatasetSpec("sst2", path=str(tmp_path / "nowhere")))
    with pytest.raises(DataError, match="no texts in"):
        load_texts(DatasetSpec("sst2", path=str(tmp_path)))
    (tmp_path / "train.parquet").write_bytes(b"no table")
    with pytest.raises(DataError, match=r"train\.parquet cannot be read"):
        load_texts(DatasetSpec("sst2", path=str(tmp_path)))


def test_an_unreachable_hub_names_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "get_dataset_split_names", unreachable)
    with pytest.raises(DataError, match=r"ag-news could not be fetched as fancyzhx/ag_news .*path"):
        load_texts(DatasetSpec("ag-news"))


def test_the_hub_is_read_as_files_are(monkeypatch: pytest.MonkeyPatch) -> None:
    splits = {"train": mixed(20), "test": numbered(5, label=-1), "validation": mixed(8)}
    monkeypatch.setattr(datasets, "get_dataset_split_names", lambda name: list(splits))
    monkeypatch.setattr(datasets, "load_dataset", lambda name, split: splits[split])
    train, test = load_texts(DatasetSpec("sst2", max_tokens=9))
    assert (len(train.labels), len(test.labels)) == (20, 8)


# The cache


def test_texts_are_tokenised_once_for_each_tokenizer_and_length(
    tmp_path: Path, word_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed(50).to_parquet(tmp_path / "train.parquet")
    spec = DatasetSpec("sst2", path=str(tmp_path))
    first = load_texts(spec)
    rows = client_rows(replace(spec, clients=3))
    shorter = load_texts(replace(spec, max_tokens=4))
    other = load_texts(replace(spec, tokenizer=str(word_tokenizer)))
    assert (first.train.tokens.shape, shorter.train.tokens.shape) == ((40, 5), (40, 4))
    assert other.train.tokens.max() < len(WORDS)
    forget_loaded()
    monkeypatch.setattr(splits, "encode", lambda *_: pytest.fail("tokenised again"))
    monkeypatch.setattr("data.clients.partition", lambda *_: pytest.fail("dealt out again"))
    again = load_texts(spec)
    assert isinstance(again.train.tokens.base, np.memmap)
    assert np.array_equal(first.train.tokens, again.train.tokens)
    same = client_rows(replace(spec, clients=3, tokenizer=str(word_tokenizer)))
    assert all(map(np.array_equal, rows, same))


# Docstrings


def test_docstrings_are_real_texts_of_four_libraries() -> None:
    train, test = load_texts(DatasetSpec("docstrings"))
    assert np.bincount(train.labels).min() > 300
    assert 0.19 < len(test.labels) / len(train.labels) / 0.8 < 0.33
    assert train.tokens.max() < HASHED_WORDS
    facts = replace(TEXTS["docstrings"], classes=("flwr",))
    (first, *_), labels = read_docstrings(facts)
    assert len(first.split()) >= 6
    assert set(labels) == {0}
    with pytest.raises(DataError, match="the docstrings of nolib are not there"):
        read_docstrings(replace(facts, classes=("nolib",)))


@pytest.mark.parametrize("kind", PARTITION_KINDS)
def test_texts_of_all_clients_are_the_training_set(kind: PartitionKind) -> None:
    shares = (1,) * 6 if kind == "shares" else None
    spec = DatasetSpec("docstrings", partition=kind, clients=6, seed=3, shares=shares)
    clients = [client_data(spec, client) for client in range(spec.clients)]
    parts = [part for c in clients for part in (c.train, c.validation, c.test)]
    train, test = load_texts(spec)
    whole = as_list(TextData.of(train, TEXTS["docstrings"]))
    assert sorted(row for part in parts for row in as_list(part)) == whole
    assert all(len(client.train) > len(client.validation) > 0 for client in clients)
    limited = replace(spec, max_train=60, max_test=20)
    assert len(global_test(limited)) == 20
    if kind == "iid":
        assert len(client_data(limited, 0).train) == 8
    assert not {row for row, _ in whole} & {
        row for row, _ in as_list(TextData.of(test, TEXTS["docstrings"])) if len(row) > 12
    }


# Batches


def test_batches_are_padded_to_their_own_longest() -> None:
    padded = np.array([[1, 5, 2, 0, 0], [1, 2, 0, 0, 0], [1, 5, 6, 7, 2]], np.int32)
    served = TextData.of(TextSplit(padded, np.array([0, 1, 1])), TEXTS["sst2"])
    (first, labels), (second, _) = served.batches(2)
    assert first.tolist() == [[1, 5, 2], [1, 2, 0]]
    assert second.tolist() == [[1, 5, 6, 7, 2]]
    assert (first.dtype, labels.tolist()) == (torch.int64, [0, 1])
    assert (len(served), served.facts.num_classes) == (3, 2)
    assert torch.equal(texts(served.to("cpu")), texts(served))


def test_a_shuffled_pass_shows_every_text_once_and_augmentation_changes_none() -> None:
    spec = DatasetSpec("docstrings", max_test=50)
    test = global_test(spec)
    chance = torch.Generator().manual_seed(0)
    seen = [
        (tuple(row[row != 0].tolist()), int(label))
        for batch in test.batches(8, shuffle=True, augment=True, generator=chance)
        for row, label in zip(*batch, strict=True)
    ]
    assert sorted(seen) == as_list(test)
    assert seen != as_list(test)


# Training


def test_a_lone_text_is_trained_on() -> None:
    task = Task("bert-tiny", 2, options=(("vocabulary", 8),), tokens=8)
    one = TextData.of(TextSplit(np.array([[1, 5, 2]], np.int32), np.array([1])), TEXTS["sst2"])
    settings = replace(EPOCH, batch_size=4, lr=0.01)
    assert fit(task.build(Slice(0.5)), one, plain_loss, settings, 1, 0).examples == 1


SMALL = (
    "model=bert-tiny model.vocabulary=4096 dataset=docstrings dataset.max_tokens=16 train=bert "
    "train.optimizer=adamw train.lr=1e-3 fleet.budgets=[0.5,1] fleet.shares=[1,1] "
    "evaluate.every=0 fleet.clients=2 clients_per_round=2"
)


def federate(overrides: str, folder: Path) -> tuple[InProcessGrid, dict[str, Any]]:
    grid = InProcessGrid(2)
    server.run(grid, compose(f"{SMALL} output={folder} name=run {overrides}"))
    return grid, dict(list(RunRecord(folder / "run").metrics())[-1])


def test_a_federation_learns_to_tell_libraries_apart(tmp_path: Path) -> None:
    grid, last = federate("strategy=fedavg rounds=2 train.epochs=2", tmp_path)
    assert last["worst"] > 0.4  # chance is a quarter
    work = Work.read(grid.sent[-1].content)
    assert (work.task.tokens, work.task.options[-1]) == (16, ("vocabulary", 4096))


@pytest.mark.parametrize("strategy", ["decoupled", "heterofl strategy.widths=[0.5,1]"])
def test_every_strategy_trains_and_reports_levels_of_bert(strategy: str, tmp_path: Path) -> None:
    few = "dataset.max_train=64 dataset.max_test=32 rounds=1 train.epochs=1"
    _, last = federate(f"strategy={strategy} {few}", tmp_path)
    assert last["clients"]["replied"] == 2
    assert set(last["levels"]) == {"1", "2"}


def test_a_run_starts_from_pre_trained_weights_which_a_resumed_one_does_not_need(
    tmp_path: Path,
) -> None:
    torch.manual_seed(9)
    weights = Task("bert-tiny", 9, options=(("vocabulary", 4096),)).build(Slice()).state_dict()
    torch.save(weights, tmp_path / "bert.pth")
    own = f"model.weights={tmp_path / 'bert.pth'} dataset.tokenizer=hashed"
    config = compose(f"{SMALL} strategy=decoupled {own}")
    strategy = strategy_of(config, weights=read_weights(str(config.model.weights)))
    name = "encoder.layer.0.attention.self.key.weight"
    assert torch.equal(strategy.state[name], weights[name])
    share = strategy.levels[0].slice.channels(64)
    kept = [head * 64 + k for head in range(2) for k in range(share)]
    assert torch.equal(strategy.state[f"{name}@level1"], weights[name][kept][:, kept])
    assert strategy.state["classifier.weight"].shape == (4, 128)
    (tmp_path / "bert.pth").unlink()
    with pytest.raises(ConfigError, match="does not exist"):
        server.run(InProcessGrid(4), replace(config, output=str(tmp_path)))


def test_texts_become_the_tokens_of_the_pre_trained_weights(
    word_tokenizer: Path, tmp_path: Path
) -> None:
    def tokenizer(weights: Path | str, more: str = "") -> str | None:
        return compose(f"{SMALL} model.weights={weights} {more}").dataset.tokenizer

    (word_tokenizer / "model.safetensors").touch()
    assert tokenizer(word_tokenizer) == str(word_tokenizer)
    assert tokenizer(word_tokenizer / "model.safetensors") == str(word_tokenizer)
    assert tokenizer(word_tokenizer, "dataset.tokenizer=other") == "other"
    assert compose(SMALL).dataset.tokenizer is None
    (tmp_path / "bert.pth").touch()
    with pytest.raises(ConfigError, match=r"bert\.pth, and .* holds no tokenizer\.json: set data"):
        tokenizer(tmp_path / "bert.pth")
    with pytest.raises(ConfigError, match=r"model\.weights: .*nowhere does not exist"):
        tokenizer(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"model\.weights: package:nothing: no such package"):
        tokenizer("package:nothing")


def test_words_are_hashed_beside_weights_if_it_is_said() -> None:
    assert encode(["a film"], "hashed", 8).tolist() == encode(["a film"], None, 8).tolist()


def test_evaluation_reads_texts() -> None:
    task = Task("bert-tiny", 4, options=(("vocabulary", 4096),), tokens=128)
    test = global_test(DatasetSpec("docstrings", max_test=40))
    reports = evaluate(task.build(Slice(0.5, exits=(1, 2))), test, EPOCH)
    assert [report.examples for report in reports] == [40, 40]


def test_constants_agree_across_packages() -> None:
    from models import bert

    assert bert.PADDING == tokens.PADDING


def test_texts_to_answer_for_are_read_with_and_without_labels(tmp_path: Path) -> None:
    spec = DatasetSpec("sst2", clients=1)
    (tmp_path / "plain.csv").write_text("text\ngood film\nbad film\n")
    (tmp_path / "labelled.csv").write_text("sentence,label\ngood film,1\nbad film,0\n")
    plain, labelled = (
        read_inputs(tmp_path / f"{name}.csv", spec) for name in ("plain", "labelled")
    )
    assert (plain.labelled, labelled.labelled) == (False, True)
    assert labelled.data.labels.tolist() == [1, 0]
    assert labelled.names == ("labelled.csv:0", "labelled.csv:1")
    first, second = (next(found.data.batches(2))[0] for found in (plain, labelled))
    assert torch.equal(first, second)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataError, match="no texts in"):
        read_inputs(tmp_path / "nothing", spec)
