"""The configuration: every file composes, every mistake is answered in one sentence."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from server_app.config import choices as choosing
from server_app.config.choices import CONF, choices, groups
from server_app.config.composing import (
    Config,
    ConfigError,
    compose,
    compose_and_tell,
    dump,
    load,
)
from server_app.config.saved import CONFIG_FILE
from strategies.federation import FleetConfig
from strategies.methods.decoupled import DecoupledSettings
from strategies.methods.heterofl import HeteroFLSettings
from strategies.methods.scalefl import ScaleFLSettings

OWN_DATA = ["dataset=folder", "dataset=table", "model=conv1d", "model=conv1d-micro"]
"""Choices that need files or fit no other data; they have tests of their own."""
EVERY_CHOICE = [
    choice
    for group in groups()
    for name in choices(group)
    if (choice := f"{group}={name}") not in OWN_DATA
]
TEXTS = [f"dataset={name}" for name in ("docstrings", "sst2", "ag-news")]
LANGUAGE = ["dataset=docstrings-words", "dataset=wikitext2"]
LANGUAGE_MODELS = ["model=transformer", "model=transformer-micro"]
READERS_OF_TEXT = [f"model={name}" for name in ("bert", "bert-mini", "bert-tiny", "minilm")]


@pytest.fixture(autouse=True, scope="module")
def remembered_files() -> Iterator[None]:
    """Read each set of files once: Hydra takes its time, and most tests need the same."""
    read = choosing.composed
    known: dict[str, Any] = {}

    def remembered(chosen: Mapping[str, str]) -> Any:
        key = str(chosen)
        if key not in known:
            known[key] = read(chosen)
        return deepcopy(known[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("server_app.config.composing.composed", remembered)
        yield


def round_tripped(config: Config, folder: Path) -> Config:
    (folder / CONFIG_FILE).write_text(dump(config), encoding="utf-8")
    return load(folder / CONFIG_FILE)


STRATEGIES = (
    "decoupled, depthfl, fedavg, feddf, fedfa, fedfa_depth, fedfa_width, fjord, flexifed, "
    "heterofl, nefl, nefl_d, nefl_d_nl, nefl_do, nefl_nl, nefl_w, scalefl, serving_rate"
)


@pytest.mark.parametrize("override", ["", *EVERY_CHOICE])
def test_every_choice_composes_and_is_read_back_equal(override: str, tmp_path: Path) -> None:
    if override in READERS_OF_TEXT:
        two_levels = " fleet.budgets=[0.5,1] fleet.shares=[1,1]"
        override += " dataset=docstrings" + two_levels * override.endswith("tiny")
    elif override in TEXTS:
        override += " model=bert-mini"
    elif override == "strategy=serving_rate":
        override += " fleet=cis_7"
    elif override in LANGUAGE:
        override += " model=transformer strategy=heterofl"
    elif override in LANGUAGE_MODELS:
        override += " dataset=docstrings-words strategy=heterofl"
    elif override.startswith("submodels="):
        blocks = override.removeprefix("submodels=")
        model = next(
            (name for name in choices("model") if blocks.startswith(f"{name}_")), "resnet20"
        )
        override += f" strategy=nefl model={model}"
    config = compose(override)
    assert round_tripped(config, tmp_path) == config


def test_an_aggregator_around_one_with_settings_is_read_back_equal(tmp_path: Path) -> None:
    inner = "{name:trimmed-mean,trim:0.1}"
    config = compose(f"aggregation=clipped aggregation.of=median aggregation.inner={inner}")
    assert config.aggregation.options["inner"] == {"name": "trimmed-mean", "trim": 0.1}
    assert round_tripped(config, tmp_path) == config


def test_every_file_can_be_chosen_or_is_part_of_another() -> None:
    assert groups() == [
        *("aggregation", "dataset", "experiment", "fleet", "model", "scale", "strategy"),
        *("submodels", "tracker", "train"),
    ]
    files = {f"{file.parent.name}={file.stem}" for file in CONF.glob("*/*.yaml")}
    assert files - set(EVERY_CHOICE) == {
        *(*OWN_DATA, "dataset=_own"),
        *("dataset=_shared", "dataset=_text", "model=_bert", "model=_resnet", "model=_vit"),
        *("dataset=_language", "model=_transformer"),
        *("strategy=_shared", "strategy=_choosing", "fleet=_shared"),
        *("experiment=_bench", "experiment=_bench_photos", "experiment=_scalefl_cifar"),
        *("experiment=_fedfa", "experiment=_cis", "experiment=_cis_cifar100"),
        *("experiment=_scalefl_imagenet", "experiment=_scalefl_text", "experiment=_nefl"),
    }
    nested = list(CONF.glob("*/*/*.yaml"))
    assert nested
    for file in nested:  # an experiment's own file of a scale
        assert file.parent.parent.name == "scale"
        assert file.parent.name in choices("scale")
        assert file.stem in choices("experiment")


def test_every_registered_model_and_data_set_has_a_file() -> None:
    from data.catalog import CATALOG

    list_names = "from models import names; print(*names())"  # other tests register networks here
    listed = subprocess.run([sys.executable, "-c", list_names], capture_output=True, text=True)
    assert listed.stdout.split() == choices("model")
    assert sorted([*CATALOG, "folder", "table"]) == choices("dataset")


def test_overrides_change_what_they_name() -> None:
    config = compose(
        "strategy=decoupled model=resnet56 dataset=cifar10 fleet=large train=paper_cifar "
        "train.lr=5e-2 train.milestones=[3,5] seed=7 dataset.partition=dirichlet name=first"
    )
    assert (config.strategy.name, config.model.name, config.dataset.name) == (
        *("decoupled", "resnet56", "cifar10"),
    )
    assert (config.train.lr, config.train.milestones, config.train.epochs) == (0.05, (3, 5), 5)
    assert (config.dataset.seed, config.dataset.clients, config.name) == (7, 100, "first")
    assert config.strategy == DecoupledSettings(ratios=config.fleet.budgets)


def test_heterofl_asks_the_model_for_its_norm_and_scaler() -> None:
    config = compose("strategy=heterofl")
    assert config.strategy == HeteroFLSettings(
        widths=(0.35, 0.5, 0.7, 1.0), rounding="ceil", masked_loss=True
    )
    assert (config.model.options["norm"], config.model.options["scaler"]) == ("bn-static", "train")
    assert "norm" not in compose("strategy=fedavg").model.options  # the network's own default
    assert compose("model.norm=gn strategy=heterofl").model.options["norm"] == "gn"
    assert compose("strategy=heterofl strategy.norm=bn").model.options["norm"] == "bn"
    assert "scaler" not in compose("strategy=heterofl strategy.scaler=null").model.options


def test_what_a_strategy_asks_of_models_is_left_out_for_one_that_has_no_such_option() -> None:
    config = compose("strategy=heterofl model=bert-tiny dataset=docstrings")
    assert config.model.options == {"vocabulary": 30522, "positions": 512, "dropout": 0.1}
    assert config.strategy == compose("strategy=heterofl").strategy


def test_an_experiment_sets_groups_and_values_and_yields_to_overrides() -> None:
    config = compose("experiment=smoke")
    assert (config.fleet.clients, config.rounds, config.dataset.max_train) == (4, 2, 200)
    assert compose("rounds=3 experiment=smoke").rounds == 3


def test_the_small_scale_needs_no_experiment_and_no_download() -> None:
    config = compose("scale=small")
    assert (config.rounds, config.fleet.clients, config.clients_per_round) == (2, 8, 4)
    assert (config.dataset.name, config.dataset.max_train) == ("digits", 400)
    assert compose("scale=small rounds=3").rounds == 3
    assert compose("dataset=cifar10 scale=small").dataset.name == "cifar10"
    assert compose("experiment=smoke scale=small").fleet.clients == 8
    assert compose("scale=full") == compose()


def test_values_may_be_quoted_and_hold_any_character() -> None:
    assert compose("dataset.path='/a (1)/b, c=d'").dataset.path == "/a (1)/b, c=d"
    assert compose(["dataset.path=/a b"]).dataset.path == "/a b"
    assert compose(shlex.join(["dataset.path=it's"])).dataset.path == "it's"
    assert compose("name=2024").name == "2024"


def test_words_that_yaml_takes_for_truth_values_stay_words(tmp_path: Path) -> None:
    config = compose("train.channels_last=on name=off")
    assert (config.train.channels_last, config.name) == ("on", "off")
    assert round_tripped(config, tmp_path) == config


MODELS = ", ".join(choices("model"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            "strategy=foo",
            f"unknown strategy 'foo'; choose from {STRATEGIES}",
        ),
        ("strategy=", f"unknown strategy ''; choose from {STRATEGIES}"),
        (
            "fleet=tiny",
            "unknown fleet 'tiny'; choose from cis_17, cis_7, cis_7_biased, cis_7_highly_biased, "
            "cis_figure2, cis_graph, even, five, large, small, three",
        ),
        (
            "train=[a]",
            "unknown train '[a]'; choose from bert, default, paper_cifar, paper_cis, paper_nefl, "
            "paper_nefl_pretrained",
        ),
        (
            "experiment=nope",
            f"unknown experiment 'nope'; choose from {', '.join(choices('experiment'))}",
        ),
        (
            "experiment=scalefl_table3_resnet110_heterofl",
            "unknown experiment 'scalefl_table3_resnet110_heterofl'; "
            "did you mean scalefl_table3_resnet110? "
            f"Choose from {', '.join(choices('experiment'))}",
        ),
        ("scale=tiny", "unknown scale 'tiny'; choose from full, small"),
        ("model=_bert", f"unknown model '_bert'; did you mean bert? Choose from {MODELS}"),
        (
            "checkpoint.evry=1",
            "no key 'evry' in checkpoint; did you mean every? Choose from best, every, keep",
        ),
        (
            "strategy=heterofI",
            f"unknown strategy 'heterofI'; did you mean heterofl? Choose from {STRATEGIES}",
        ),
        (
            "weighting=exampels",
            "unknown weighting 'exampels'; did you mean examples? Choose from uniform, examples",
        ),
        ("fleet.clients=0", "fleet: clients is 0: expected at least 1"),
        ("seed=-1", "seed is -1: expected 0 or more"),
        ("rounds.x=3", "no key 'rounds.x': rounds is a single value"),
        ("evaluate=3", "evaluate: set its keys one by one, evaluate.every=..."),
        ("rounds", "'rounds' is no override: expected key=value, without spaces"),
        ("rounds = 3", "'rounds' is no override: expected key=value, without spaces"),
        ("=3", "'=3' is no override: expected key=value, without spaces"),
        ("+x=1", "'+x=1': keys cannot be added or removed; give key=value"),
        ("~seed=0", "'~seed=0': keys cannot be added or removed; give key=value"),
        ("name='x", "cannot read the overrides name='x: No closing quotation"),
        ("train.milestones=[1", "train.milestones: cannot read the value '[1'"),
        ("train.lr=${", "train.lr: cannot read the value '${'"),
        ("train.lr=${zz}", "train.lr: Interpolation key 'zz' not found"),
        ("rounds=abc", "rounds: expected a whole number, got 'abc'"),
        ("rounds=1,2", "rounds: expected a whole number, got '1,2'"),
        ("rounds=2.5", "rounds: expected a whole number, got 2.5"),
        ("rounds=true", "rounds: expected a whole number, got True"),
        ("train.lr=", "train.lr: expected a number, got ''"),
        ("train.lr=inf", "train.lr: expected a number, got inf"),
        ("train.augment=1", "train.augment: expected true or false, got 1"),
        ("train.milestones=3", "train.milestones: expected a list such as [1,2], got 3"),
        ("output=[a]", "output: expected text, got ['a']"),
        ("weighting=x", "unknown weighting 'x'; choose from uniform, examples"),
        ("train.schedule=x", "unknown train.schedule 'x'; choose from constant, step, cosine"),
        ("rounds=0", "rounds is 0: expected at least 1"),
        ("train.epochs=0", "train: epochs is 0: expected at least 1"),
        ("train.clip=-1", "train: clip is -1.0: expected a finite number, 0 or more"),
        (
            "train.nesterov=true train.momentum=0",
            "train: nesterov is True: expected momentum above 0 with it",
        ),
        ("train.lr=0", "train: lr is 0.0: expected a finite number above 0"),
        ("train.momentum=1", "train: momentum is 1.0: expected 0 or more and less than 1"),
        ("train.schedule=step", "train: milestones is (): expected at least one for schedule step"),
        (
            "train.milestones=[5,3]",
            "train: milestones is (5, 3): expected rounds in ascending order, each once",
        ),
        ("min_replies=0", "min_replies is 0.0: expected above 0, to 1"),
        ("clients_per_round=21", "clients_per_round is 21, but the fleet has 20 clients"),
        ("dataset.clients=3", "dataset.clients is 3, but the fleet has 20 clients"),
        ("dataset.alpha=0", "dataset: alpha is 0.0: expected a finite number above 0"),
        ("name=a/b", "name is 'a/b': expected letters, digits, '-', '_' and '.'"),
        ("fleet.budgets=[0.5,1]", "fleet: 4 shares, but 2 budgets"),
        (
            "fleet.budgets=[0,1]",
            "fleet: budgets are [0.0, 1.0]: expected to rise from above 0 to 1",
        ),
        (
            "fleet.shares=[0,0,0,0]",
            "fleet: shares are [0.0, 0.0, 0.0, 0.0]: expected 0 or more, not all 0",
        ),
        (
            "strategy=heterofl strategy.widths=[0.5,0.25]",
            "strategy: widths are [0.5, 0.25]: expected to rise from above 0 to 1, the full model",
        ),
        ("model.norm=x", "model: unknown norm 'x'; choose from bn, bn-running, bn-static, gn"),
        ("model.head=x", "model: unknown exit head 'x'; choose from conv, pool, attention"),
        ("model=bert", "model: bert reads tokens, but the data set digits holds images"),
        ("dataset=sst2", "model: resnet20 reads images, but the data set sst2 holds tokens"),
        ("train.optimizer=lion", "unknown train.optimizer 'lion'; choose from sgd, adamw"),
        ("dataset=sst2 dataset.max_tokens=2", "dataset: max_tokens is 2: expected at least 3"),
        (
            "model=bert-tiny dataset=docstrings model.norm=gn",
            "no key 'norm' in model; choose from dropout, name, positions, vocabulary, weights",
        ),
        (
            "model=bert-tiny dataset=docstrings model.vocabulary=many",
            "model: vocabulary is 'many': expected a whole number, at least 1",
        ),
        (
            "strategy.ratios=null strategy.splits=[[3,0],[9,1]]",
            "strategy: splits: [3.0, 0.0]: expected at least 1 unit, and a width above 0, to 1",
        ),
        (
            "strategy.ratios=null strategy.splits=[[0,0.5],[9,1]]",
            "strategy: splits: [0.0, 0.5]: expected at least 1 unit, and a width above 0, to 1",
        ),
        (
            "strategy.ratios=null strategy.splits=[[6,0.5],[8,1]]",
            "strategy: the last split is [8.0, 1.0]: expected [9, 1.0], the full model",
        ),
        (
            "strategy.temperature=0",
            "strategy: temperature is 0.0: expected a finite number above 0",
        ),
        (
            "strategy.beta=-0.1",
            "strategy: beta is -0.1: expected a finite number, 0 or more",
        ),
        *(
            (
                f"strategy.window=random model.norm={norm}",
                f"strategy: window is random, but model.norm {norm} keeps one set of statistics "
                "for all clients of a level, who then have other channels each: choose another "
                "window, or norm bn or gn",
            )
            for norm in ("bn-running", "bn-static")
        ),
        *(
            (
                f"strategy.window={window} model.shortcut=A",
                f"strategy: window is {window}, but model.shortcut A pads where the first channels "
                "belong: choose window prefix, or shortcut B",
            )
            for window in ("upper-right", "lower-left", "lower-right", "middle", "random")
        ),
        ("resume=nowhere", "resume: nowhere is no run directory and in none (no config.yaml)"),
    ],
)
def test_a_mistake_is_answered_in_one_sentence(overrides: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        compose(overrides)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("key", "where", "meant"),
    [
        ("train.lrr", " in train", "lr"),
        ("stratgey", "", "strategy"),
        ("expriment", "", "experiment"),
        ("lr", "", "train.lr"),
        ("train.rounds", " in train", "rounds"),
    ],
)
def test_an_unknown_key_is_answered_with_the_one_that_is_meant_and_the_known_ones(
    key: str, where: str, meant: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        compose(f"{key}=1")
    told, _, choices = str(raised.value).partition(" Choose from ")
    assert told == f"no key {key.split('.')[-1]!r}{where}; did you mean {meant}?"
    assert {"lr", "epochs"} <= set(choices.split(", ")) if where else "rounds" in choices
    assert len(set(choices.split(", "))) == len(choices.split(", "))


@pytest.mark.parametrize(
    "overrides",
    [
        "strategy.window=random model.norm=gn",
        "strategy.window=middle model.norm=bn-running",
        "strategy.window=prefix model.shortcut=A model.norm=bn-static",
    ],
)
def test_windows_go_with_norms_and_shortcuts_that_fit_them(overrides: str) -> None:
    compose(overrides)


def test_a_fleet_of_few_clients_lowers_the_clients_of_a_round_and_says_so(tmp_path: Path) -> None:
    config, notes = compose_and_tell("fleet.clients=4")
    assert (config.fleet.clients, config.dataset.clients, config.clients_per_round) == (4, 4, 4)
    assert notes == ("clients_per_round lowered from 20 to 4, the clients of the fleet",)
    assert compose_and_tell("fleet.clients=20").notes == ()
    with pytest.raises(ConfigError, match="clients_per_round is 20, but the fleet has 4 clients"):
        compose("fleet.clients=4 clients_per_round=20")
    (tmp_path / CONFIG_FILE).write_text(dump(config), encoding="utf-8")
    again, notes = compose_and_tell(f"resume={tmp_path}")
    assert (again.clients_per_round, notes) == (4, ())
    with pytest.raises(ConfigError, match="clients_per_round is 4, but the fleet has 3 clients"):
        compose(f"resume={tmp_path} fleet.clients=3 dataset.clients=3")


def test_a_resumed_run_keeps_its_settings_but_for_overrides(tmp_path: Path) -> None:
    first = compose("strategy=decoupled train.lr=0.3 seed=5")
    (tmp_path / CONFIG_FILE).write_text(dump(first), encoding="utf-8")
    inside = tmp_path / "checkpoints" / "round-000003.safetensors"
    for path in (tmp_path, tmp_path / "checkpoints", inside):
        resumed = compose(["rounds=99", f"resume={path}"])
        assert resumed == replace(first, rounds=99, resume=str(path))
    with pytest.raises(ConfigError, match="a run goes on with its own strategy; leave it out"):
        compose(["strategy=heterofl", f"resume={tmp_path}"])
    (tmp_path / CONFIG_FILE).write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"config\.yaml cannot be read"):
        compose([f"resume={tmp_path}"])


@settings(max_examples=15, deadline=None)
@example(seed=0, lr=0.1, path="a\x85b\u2028c é")
@given(
    st.integers(0, 2**63),
    st.floats(1e-300, 1e18, allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="$"), max_size=20),
)
def test_any_values_are_read_back_equal(
    tmp_path_factory: pytest.TempPathFactory, seed: int, lr: float, path: str
) -> None:
    config = compose()
    changed = replace(
        config,
        seed=seed,
        train=replace(config.train, lr=lr),
        dataset=replace(config.dataset, path=path),
    )
    assert round_tripped(changed, tmp_path_factory.getbasetemp()) == changed


@given(st.integers(1, 300), st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_tiers_divide_the_fleet_by_its_shares(clients: int, shares: list[int]) -> None:
    if not sum(shares):
        return
    budgets = tuple((n + 1) / len(shares) for n in range(len(shares)))
    fleet = FleetConfig(clients, budgets, tuple(map(float, shares)))
    counts = [tier.clients for tier in fleet.tiers]
    assert sum(counts) == clients
    if clients >= sum(share > 0 for share in shares):  # fewer: tests/test_fleet.py
        for count, share in zip(counts, shares, strict=True):
            assert abs(count - clients * share / sum(shares)) <= 1
    tiers = [fleet.tier_of(client) for client in range(clients)]
    assert tiers == sorted(tiers)
    assert [tiers.count(tier) for tier in range(len(shares))] == counts


def test_a_run_of_before_its_keys_were_renamed_is_read(tmp_path: Path) -> None:
    now = compose("strategy=heterofl in_flight=7")
    text = dump(now).replace("in_flight: 7", "window: 7")
    text = text.replace("  masked_loss: true\n", "").replace(
        "  norm: bn-static\n  scaler: train\n", ""
    )
    old = "  window: prefix\n  objective: masked-cross-entropy\n  objective_settings: {}\n"
    text = text.replace("  name: heterofl\n", f"  name: heterofl\n{old}").replace(
        "  name: resnet20\n", "  name: resnet20\n  norm: bn-static\n  scaler: train\n"
    )
    (tmp_path / CONFIG_FILE).write_text(text)
    assert load(tmp_path / CONFIG_FILE) == now
    resumed = compose(f"resume={tmp_path} rounds=30")
    assert (resumed.in_flight, resumed.rounds, resumed.strategy) == (7, 30, now.strategy)
    (tmp_path / CONFIG_FILE).write_text(text.replace("masked-cross-entropy", "self-distillation"))
    with pytest.raises(ConfigError, match="the objective self-distillation, which heterofl has no"):
        load(tmp_path / CONFIG_FILE)
    distilled = dump(compose("")).replace("  beta: 0.1\n", "")
    old = "  objective: self-distillation\n  objective_settings: {beta: 0.4, start: 3}\n"
    distilled = distilled.replace("  start: 1\n", "").replace(
        "  temperature", f"{old}  temperature"
    )
    (tmp_path / CONFIG_FILE).write_text(distilled)
    settings = load(tmp_path / CONFIG_FILE).strategy
    assert isinstance(settings, ScaleFLSettings)
    assert (settings.beta, settings.start) == (0.4, 3)


@pytest.mark.parametrize(
    ("strategy", "after", "gone", "value", "other"),
    [
        ("depthfl", "  name: depthfl\n", "answer", "ensemble", "last"),
        ("flexifed model=preresnet-micro", "  name: flexifed\n", "population", "8", "4"),
        ("feddf", "  distillation:\n", "  threads", "1", "2"),
    ],
)
def test_a_run_with_a_setting_that_is_gone_goes_on_where_it_had_the_usual_value(
    tmp_path: Path, strategy: str, after: str, gone: str, value: str, other: str
) -> None:
    now = compose(f"strategy={strategy}")
    kept = tmp_path / CONFIG_FILE
    kept.write_text(dump(now).replace(after, f"{after}  {gone}: {value}\n"))
    assert load(kept) == now
    kept.write_text(dump(now).replace(after, f"{after}  {gone}: {other}\n"))
    with pytest.raises(ConfigError, match=f"{gone.strip()} is {other}, a setting that is gone"):
        load(kept)
