"""The examples compute what their originals compute, have all properties, and train."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torchvision
from transformers import (
    DistilBertConfig,
    DistilBertForMaskedLM,
    DistilBertForSequenceClassification,
)

import plugins
from inference.serving.node_part import read_part
from models import Slice, Task
from models.loading import load_pretrained
from models.masking import randomised
from models.slicing import is_running_statistic
from nestfl.local_engine import LocalGrid
from server_app import app as server
from server_app.building import strategy_of
from server_app.config.composing import compose
from server_app.config.weights import read_weights
from server_app.splitting import Splitter, chain
from strategies.network_checks import findings

pytestmark = pytest.mark.usefixtures("no_plugins_left", "one_thread")

EXAMPLES = Path(__file__).parents[2] / "examples"
SHORT = (
    "fleet=small rounds=1 train.epochs=1 dataset.max_train=80 dataset.max_test=20 "
    "train.augment=false evaluate.every=0 report=false"
)
VGG = "model=vgg11_bn model.size=4 model.norm=bn-running"
DISTIL = "model=distilbert model.size=2 dataset=docstrings dataset.max_tokens=8"


@pytest.fixture(autouse=True)
def examples() -> None:
    for name in ("vgg11_bn.py", "distilbert.py"):
        plugins.load(EXAMPLES / name)


def test_vgg_has_torchvisions_names_and_answers() -> None:
    """With the channels of the published network, but for few classes."""
    with torch.device("meta"):
        theirs = torchvision.models.vgg11_bn().state_dict()
    task = Task("vgg11_bn", 1000, options=(("norm", "bn-running"),))
    ours = task.build(Slice(), "meta").state_dict()
    assert {n: t.shape for n, t in ours.items()} == {n: t.shape for n, t in theirs.items()}


@pytest.mark.parametrize("size", [32, 64])
def test_vgg_answers_as_torchvisions(size: int) -> None:
    theirs = randomised(torchvision.models.vgg11_bn(num_classes=7)).eval()
    task = Task("vgg11_bn", 7, options=(("norm", "bn-running"),))
    ours = task.build(Slice(), "meta").to_empty(device="cpu").eval()
    load_pretrained(task, ours, theirs.state_dict())
    images = torch.randn(1, 3, size, size)
    with torch.no_grad():
        torch.testing.assert_close(ours(images)[-1], theirs(images))


CONFIG = DistilBertConfig(dim=24, hidden_dim=96, n_heads=12, vocab_size=50, num_labels=4)
DISTIL_TASK = Task("distilbert", 4, tokens=8, options=(("size", 2), ("vocabulary", 50)))


def test_distilbert_answers_as_hugging_faces() -> None:
    theirs = DistilBertForSequenceClassification(CONFIG).eval()
    ours = DISTIL_TASK.build(Slice()).eval()
    load_pretrained(DISTIL_TASK, ours, theirs.state_dict())
    texts = torch.randint(1, 50, (3, 8))
    texts[0, 5:] = 0
    with torch.no_grad():
        expected = theirs(texts, attention_mask=(texts != 0).long()).logits
        torch.testing.assert_close(ours(texts)[-1], expected)


@pytest.mark.parametrize(
    "task",
    [Task("vgg11_bn", image_size=8, options=(("norm", "bn-running"), ("size", 4))), DISTIL_TASK],
    ids=lambda task: task.model,
)
def test_they_have_all_properties_of_slicing(task: Task) -> None:
    found = findings(task, lambda error: None)
    assert {each.name: each.wrong for each in found if each.wrong} == {}


@pytest.mark.parametrize("strategy", ["heterofl", "scalefl"])
@pytest.mark.parametrize("model", [VGG, DISTIL], ids=["vgg11_bn", "distilbert"])
def test_they_train(model: str, strategy: str, tmp_path: Path) -> None:
    """In levels of width, and of depth with early exits, from pre-trained weights."""
    units = 8 if model == VGG else 6
    splits = f"strategy.ratios=null strategy.splits=[[2,0.5],[4,0.5],[5,1.0],[{units},1.0]]"
    levels = splits if strategy == "scalefl" else ""
    asked = f"{model} strategy={strategy} {levels} {SHORT} output={tmp_path} name=run"
    weights = saved_weights(model, tmp_path / "weights")
    config = compose(f"{asked} model.weights={weights}")
    first = strategy_of(config, weights=read_weights(str(weights)))
    loaded = first.network(4).state_dict()
    for name, tensor in read_weights(str(weights)).items():
        own = name.removeprefix("distilbert.")
        if own in loaded and "classifier.6" not in own:
            assert torch.equal(loaded[own], tensor), name
    trained = server.run(LocalGrid(4), config)
    assert trained.state.keys() == first.state.keys()
    unchanged = {n for n, t in trained.state.items() if torch.equal(t, first.state[n])}
    learns_nothing = {name for name in unchanged if name.endswith("k_lin.bias")}  # by softmax
    assert {n for n in unchanged - learns_nothing if not is_running_statistic(n)} == set()
    if strategy == "scalefl":
        assert [level.slice.exits for level in trained.levels][-1] == (2, 4, 5, units)


LEARNING = {
    "vgg11_bn": "dataset=digits train.lr=0.01 dataset.max_train=400",
    "distilbert": "dataset=docstrings dataset.max_tokens=16 dataset.max_train=200 "
    "strategy.cost=macs train.optimizer=adamw train.lr=1e-3",
}


@pytest.mark.parametrize("strategy", ["heterofl", "scalefl"])
@pytest.mark.parametrize("model", LEARNING)
def test_they_learn_with_the_settings_that_docs_name(
    model: str, strategy: str, tmp_path: Path
) -> None:
    """At size 8, in levels that the plan finds."""
    asked = f"model={model} model.size=8 strategy={strategy} {LEARNING[model]} fleet=small rounds=2"
    config = compose(f"{asked} dataset.max_test=20 report=false output={tmp_path} name=run")
    server.run(LocalGrid(4), config)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    first, last = (json.loads(line)["train"]["loss"] for line in lines)
    assert last < first


def test_a_part_of_a_served_network_has_its_code(tmp_path: Path) -> None:
    config = compose(
        f"{VGG} strategy=scalefl strategy.ratios=null strategy.splits=[[4,1.0],[8,1.0]] {SHORT} "
        f"fleet.budgets=[0.5,1] fleet.shares=[1,1] output={tmp_path} name=run"
    )
    server.run(LocalGrid(4), config)
    nodes = chain((1, 2), (0.5,))
    Splitter(tmp_path / "run").split(nodes, {"node1": 0.5, "node2": 0.0}, tmp_path / "parts")
    for plugin in plugins.loaded():
        plugins.unload(plugin)
    facts, part = read_part(tmp_path / "parts" / "node1")
    assert [plugin.name for plugin in plugins.loaded()] == ["distilbert", "vgg11_bn"]
    assert (facts.task.model, part.last) == ("vgg11_bn", 4)


def saved_weights(model: str, folder: Path) -> Path:
    """Return weights as another library saves them: a file, or a folder with a tokenizer."""
    folder.mkdir()
    if model == VGG:
        with_few_channels = Task(
            "vgg11_bn", 1000, 1, options=(("norm", "bn-running"), ("size", 4))
        ).build(Slice())
        torch.save(with_few_channels.state_dict(), folder / "vgg.pt")
        return folder / "vgg.pt"
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "a", "of", "return", "and"]
    tokenizer = Tokenizer(WordLevel({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = DistilBertConfig(dim=24, hidden_dim=96, n_heads=12)
    DistilBertForMaskedLM(config).save_pretrained(folder)
    return folder
