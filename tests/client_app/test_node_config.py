"""The node config is read as Flower parses it; on a device an unknown key is an error."""

from __future__ import annotations

import pytest

from client_app.node_config import NodeConfig
from protocol.environment import DEVICE
from tests.support.devices import node_config


@pytest.fixture
def deployed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEVICE, "1")


def read(text: str) -> NodeConfig:
    return NodeConfig.read(node_config(text))


@pytest.mark.usefixtures("deployed")
def test_all_keys_are_read_as_flower_parses_them() -> None:
    assert read(
        'budget=0.25 partition-id=1 num-partitions=3 data.ag-news="/with a space" code="any" '
        'data.cifar10="/c" tokenizer="/models/minilm" allow="hub, package,compile"'
    ) == NodeConfig(
        deployed=True,
        budget=0.25,
        partition=1,
        partitions=3,
        named_data={"ag-news": "/with a space", "cifar10": "/c"},
        tokenizer="/models/minilm",
        allowed=frozenset({"hub", "package", "compile"}),
    )
    assert read('data="/photos" allow=""') == NodeConfig(True, data="/photos")


@pytest.mark.usefixtures("deployed")
def test_files_are_of_the_data_set_that_they_are_offered_for() -> None:
    named = read('data.cifar10="/c"')
    assert (named.files_of("cifar10"), named.files_of("digits")) == ("/c", None)
    assert read('data="/photos"').files_of("digits") == "/photos"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('data.cifar10="/c" partition-id=0 num-partitions=2', True),
        ("partition-id=0 num-partitions=2", True),
        ('data.cifar10="/c"', False),
        ('data.cifar10="/c" partition-id=0', False),  # a number to be sampled by
        ('data="/photos" partition-id=0 num-partitions=2', False),
    ],
)
def test_a_partition_is_one_of_a_data_set_that_others_have_too(text: str, parts: bool) -> None:
    assert read(text).holds_parts is parts


@pytest.mark.usefixtures("deployed")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('dta="/photos"', r"'dta', which is no key: choose from allow, budget, .*, data\.NAME"),
        ('data.cifer="/c"', r"'data\.cifer', which is no data set: choose from digits, .*cifar10"),
        ('allow="hub,packages"', "allow is 'hub,packages': 'packages' is none of hub, package, c"),
        ("allow=true", "allow is True: expected a text in quotes"),
        ("data=1", "data is 1: expected a text in quotes"),
        ('data.cifar10=""', r"data\.cifar10 is '': expected a text"),
        ('tokenizer=""', "tokenizer is '': expected a text"),
        ("partition-id=0.5", "partition-id is 0.5: expected a whole number"),
        ("num-partitions=0", "num-partitions is 0: expected a whole number, 1 to"),
        ('budget="much"', "budget is 'much': expected a number"),
    ],
)
def test_a_device_says_what_is_wrong_with_its_node_config(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read(text)


def test_other_keys_are_no_matter_to_a_simulated_client() -> None:
    assert read("partition-id=0 num-partitions=2 other=1") == NodeConfig(partition=0, partitions=2)
