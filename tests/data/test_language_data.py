"""Running texts: words and vocabularies by hand, runs of them, and files that are none."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch

from data import splits
from data.catalog import LANGUAGE, DataError
from data.clients import client_data, deal_of, device_data
from data.examples import LanguageData, LanguageSplit
from data.spec import DatasetSpec, PartitionKind
from data.splits import load_language
from data.words import numbered, runs, vocabulary, words_of

LINES = " = A cat = \n\nthe cat saw the <unk> cat .\n"


@pytest.fixture(autouse=True, scope="module")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One for all tests here: reading docstrings takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NESTFL_CACHE", str(tmp_path_factory.mktemp("cache")))
        forget_loaded()
        yield
    forget_loaded()


def forget_loaded() -> None:
    splits._language.cache_clear()
    deal_of.cache_clear()


def spec_of(path: Path, words: int | None = 8, max_tokens: int = 4) -> DatasetSpec:
    return DatasetSpec("wikitext2", str(path), clients=1, max_tokens=max_tokens, words=words)


def write(folder: Path, **splits: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in splits.items():
        (folder / f"wiki.{name}.tokens").write_text(text, encoding="utf-8")
    return folder


# --- words -----------------------------------------------------------------------------------


def test_words_are_those_between_spaces_and_lines_have_an_end() -> None:
    assert words_of(" = A cat's , = \n", "whitespace") == ["=", "A", "cat's", ",", "=", "<eos>"]
    assert words_of(" \n", "whitespace") == ["<eos>"]


def test_basic_english_is_torchtexts() -> None:
    line = 'You can now "install"; it\'s fun, (or <unk>): yes!'
    assert words_of(line, "basic-english") == [
        *("you", "can", "now", "install", "it", "'", "s", "fun", ",", "(", "or", "<unk>", ")"),
        *("yes", "!"),
    ]


def test_the_vocabulary_has_the_most_frequent_words_first() -> None:
    words = ["b", "a", "b", "c", "a", "b", "<unk>", "d"]
    assert vocabulary(words, 5) == {"b": 0, "a": 1, "<unk>": 2, "c": 3, "d": 4}
    assert vocabulary(words, 3) == {"b": 0, "a": 1, "<unk>": 2}
    assert vocabulary(words, 2) == {"b": 0, "<unk>": 1}  # which stands for all others
    assert vocabulary(["a"], 2) == {"a": 0, "<unk>": 1}
    assert numbered(["a", "z", "b", "d"], vocabulary(words, 3)).tolist() == [1, 2, 0, 2]
    with pytest.raises(DataError, match="the training text has 5 words, and words is 6: expected"):
        vocabulary(words, 6)


def test_a_run_ends_with_the_first_word_of_the_next() -> None:
    text = np.arange(10, dtype=np.int32)
    assert runs(text, 3).tolist() == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]]
    assert runs(text[:9], 3).tolist() == [[0, 1, 2, 3], [3, 4, 5, 6]]
    with pytest.raises(DataError, match="a text of 3 words is too short: expected at least 4"):
        runs(text[:3], 3)


# --- files -----------------------------------------------------------------------------------

# "cat", "<eos>" three times each; "=", "the" twice; then ".", "<unk>", "A", "saw" once each.
CAT, EOS, EQUALS, THE, DOT, UNKNOWN, A, SAW = 1, 0, 2, 3, 4, 5, 6, 7
TRAIN = [EQUALS, A, CAT, EQUALS, EOS, EOS, THE, CAT, SAW, THE, UNKNOWN, CAT, DOT, EOS]


@pytest.mark.parametrize("kind", ["plain", "gzipped", "parquet"])
def test_the_words_of_files_are_numbered_by_the_training_text(kind: str, tmp_path: Path) -> None:
    texts = {"train": LINES, "valid": "not read\n", "test": "the dog saw the cat\n"}
    if kind == "plain":
        write(tmp_path, **texts)
    for split, text in texts.items():
        if kind == "gzipped":
            (tmp_path / f"wikitext2-{split}.tokens.gz").write_bytes(gzip.compress(text.encode()))
        if kind == "parquet":
            rows = datasets.Dataset.from_dict({"text": text.splitlines(keepends=True)})
            name = "validation" if split == "valid" else split
            rows.to_parquet(tmp_path / f"{name}-00000-of-00001.parquet")
    train, test = load_language(spec_of(tmp_path))
    assert train.words.tolist() == [TRAIN[0:5], TRAIN[4:9], TRAIN[8:13]]
    assert test.words.tolist() == [[THE, UNKNOWN, SAW, THE, CAT]]
    served = LanguageData.of(train, LANGUAGE["wikitext2"])
    ((inputs, labels),) = served.batches(3)
    assert inputs.tolist() == [TRAIN[0:4], TRAIN[4:8], TRAIN[8:12]]
    assert labels.tolist() == TRAIN[1:13]
    assert inputs.dtype == labels.dtype == torch.int64
    assert len(served) == 3


def test_without_test_files_the_last_fifth_of_the_lines_is_held_out(tmp_path: Path) -> None:
    lines = "".join(f"a b {number}\n" for number in range(10))
    train, test = load_language(spec_of(write(tmp_path, train=lines), words=11, max_tokens=3))
    assert len(train.words) == (8 * 4 - 1) // 3
    assert len(test.words) == (2 * 4 - 1) // 3
    (tmp_path / "wiki.valid.tokens").write_text("a a b b\n")
    forget_loaded()
    _, test = load_language(spec_of(tmp_path, words=13, max_tokens=3))
    assert len(test.words) == 1  # a validation set is better than a part of the training text


def test_wrong_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere does not exist: no wikitext2 there"):
        load_language(spec_of(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"no text in .*: expected \*train\*\.tokens and"):
        load_language(spec_of(tmp_path))
    write(tmp_path, train=LINES, test="a b c d e\n")
    with pytest.raises(DataError, match=r": the training text has 8 words, and words is 33278"):
        load_language(spec_of(tmp_path, words=None))
    with pytest.raises(DataError, match=r"a text of 6 words is too short: expected at least 9"):
        load_language(spec_of(tmp_path, max_tokens=8))
    broken = tmp_path / "broken" / "train.tokens.gz"
    broken.parent.mkdir()
    broken.write_bytes(b"no gzip")
    with pytest.raises(DataError, match=r"train\.tokens\.gz cannot be read: Not a gzipped file"):
        load_language(spec_of(broken))
    latin = tmp_path / "latin.tokens"
    latin.write_bytes("café\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"latin\.tokens cannot be read: 'utf-8' codec"):
        load_language(spec_of(latin))
    table = tmp_path / "train.parquet"
    datasets.Dataset.from_dict({"line": ["a"]}).to_parquet(table)
    with pytest.raises(DataError, match=r"train\.parquet: no column text; the columns are: line"):
        load_language(spec_of(table))
    datasets.Dataset.from_dict({"text": ["a", None]}).to_parquet(table)
    with pytest.raises(DataError, match=r"train\.parquet: row 1 holds None: expected a line"):
        load_language(spec_of(table))


def test_what_cannot_be_fetched_says_how_to_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(DataError, match=r"as Salesforce/wikitext wikitext-2-v1 .* no network"):
        load_language(DatasetSpec("wikitext2"))


# --- settings --------------------------------------------------------------------------------


def test_the_number_of_classes_is_known_without_the_data() -> None:
    assert DatasetSpec("wikitext2").num_classes == 33_278
    assert DatasetSpec("wikitext2", tokenizer="basic-english").num_classes == 28_782
    assert DatasetSpec("wikitext2", words=500).num_classes == 500
    assert DatasetSpec("cifar100").num_classes == 100


@pytest.mark.parametrize("partition", ["classes", "dirichlet"])
def test_a_text_has_no_classes_to_be_dealt_out_by(partition: PartitionKind) -> None:
    told = f"partition {partition} deals out by class, .* choose one of: iid, sizes"
    with pytest.raises(DataError, match=told):
        DatasetSpec("wikitext2", partition=partition)


def test_wrong_settings_are_told_with_the_choices() -> None:
    with pytest.raises(DataError, match="words is 1: expected at least 2"):
        DatasetSpec("wikitext2", words=1)
    with pytest.raises(DataError, match="words is 9, but digits is no running text"):
        DatasetSpec("digits", words=9)
    with pytest.raises(DataError, match="unknown tokenizer 'spacy'; choose one of: whitespace, b"):
        DatasetSpec("wikitext2", tokenizer="spacy")


def test_a_device_has_no_vocabulary_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a device's own text has a vocabulary of its own"):
        device_data(tmp_path, spec_of(tmp_path))


# --- clients ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["iid", "sizes"])
def test_runs_are_dealt_out_as_examples(kind: PartitionKind) -> None:
    spec = DatasetSpec("docstrings-words", clients=4, partition=kind, max_tokens=32, seed=2)
    train, _ = load_language(spec)
    assert int(train.words.max()) == spec.num_classes - 1 == 1999
    parts = [client_data(spec, client) for client in range(4)]
    dealt = [part for each in parts for part in (each.train, each.validation, each.test)]
    assert sum(map(len, dealt)) == len(train.words)
    rows = torch.cat([part.labels for part in dealt])
    assert sorted(rows.tolist()) == sorted(train.words[:, 1:].tolist())


def test_a_few_rows_are_copied_and_all_are_not() -> None:
    split = LanguageSplit(np.arange(12, dtype=np.int32).reshape(3, 4))
    facts = LANGUAGE["wikitext2"]
    some = LanguageData.of(split, facts, np.array([2, 0]))
    assert some.inputs.tolist() == [[8, 9, 10], [0, 1, 2]]
    assert some.labels.tolist() == [[9, 10, 11], [1, 2, 3]]
    assert LanguageData.of(split, facts).inputs.data_ptr() == split.words.ctypes.data
