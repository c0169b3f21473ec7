"""Weights from torchvision's cache by name; without a network the error names the way out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from server_app.config.composing import compose
from server_app.config.overrides import with_absolute_paths
from server_app.config.typed import ConfigError
from server_app.config.weights import read_weights

PLACE = "torchvision:ViT_B_16_Weights.IMAGENET1K_V1"
FILE = "vit_b_16-c867db91.pth"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that torchvision's files are kept in, and no network."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    for scheme in ("http", "https"):
        monkeypatch.setenv(f"{scheme}_proxy", "http://127.0.0.1:9")  # where nobody listens
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    return folder


def test_weights_of_torchvision_are_read_from_its_cache(cache: Path) -> None:
    weights = {"conv_proj.bias": torch.arange(3.0)}
    torch.save(weights, cache / FILE)
    assert torch.equal(read_weights(PLACE)["conv_proj.bias"], weights["conv_proj.bias"])


def test_a_file_that_is_not_there_is_named_with_its_folder(cache: Path) -> None:
    message = (
        rf"model.weights: {FILE} of {PLACE} could not be fetched \(.*put that file into {cache}"
    )
    with pytest.raises(ConfigError, match=message):
        read_weights(PLACE)


@pytest.mark.parametrize("content", [b"", b"no weights"])
def test_a_broken_file_in_the_cache_is_named(cache: Path, content: bytes) -> None:
    (cache / FILE).write_bytes(content)
    with pytest.raises(ConfigError, match=f"model.weights: {cache / FILE} cannot be read"):
        read_weights(PLACE)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ViT_B16_Weights.IMAGENET1K_V1", "ViT_B_16_Weights.IMAGENET1K_V1"),
        ("Wide_ResNet101_2_Weights.V2", "Wide_ResNet101_2_Weights.IMAGENET1K_V2"),
        ("resnet18", "ResNet18_Weights.IMAGENET1K_V1"),
        ("resnet.IMAGENET1K_V1", "ResNet50_Weights.IMAGENET1K_V1"),  # a module of torchvision's
    ],
)
def test_a_wrong_name_is_an_error_with_those_like_it(name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"torchvision has no weights '{name}'; .*{meant}"):
        read_weights(f"torchvision:{name}")


def test_without_torchvision_the_package_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server_app.config.weights.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"not installed: pip install 'nestfl\[torchvision\]'"):
        read_weights(PLACE)


def test_the_name_is_taken_from_a_command_line_as_it_is(tmp_path: Path) -> None:
    override = f"model.weights={PLACE}"
    assert with_absolute_paths(tmp_path, [override]) == [override]
    config = compose(f"model=vit_b_16 dataset=cifar10 strategy=heterofl {override}")
    assert config.model.weights == PLACE


@pytest.mark.parametrize("name", ["text.pt", "text.safetensors", "pickled.pt"])
@pytest.mark.parametrize("content", ["just some text\n" * 10, "hello", "", "(lp0\n", "\0" * 100])
def test_a_file_that_holds_no_weights_is_named_in_one_line(
    tmp_path: Path, name: str, content: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError) as told:
        read_weights(str(tmp_path / name))
    assert str(told.value).startswith(f"model.weights: {tmp_path / name} cannot be read (")
    assert "expected a .safetensors file, or tensors by name" in str(told.value)
    assert "\n" not in str(told.value)


def test_tensors_without_names_are_no_weights(tmp_path: Path) -> None:
    tensors = {0: torch.zeros(2), 1: torch.ones(3)}
    for number, content in enumerate((tensors, {"state_dict": tensors}, list(tensors.values()))):
        file = tmp_path / f"{number}.pt"
        torch.save(content, file)
        with pytest.raises(ConfigError, match=r"(0 names a Tensor|it holds a list).*by name"):
            read_weights(str(file))


def test_weights_are_read_of_regular_files_alone(tmp_path: Path) -> None:
    for name in ("pipe.pt", "pipe.safetensors"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(ConfigError, match=f"{name} is a named pipe: expected a regular file"):
            read_weights(str(tmp_path / name))
