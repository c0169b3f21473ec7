"""Loads pre-trained weights from files or torchvision, and finds their tokenizer."""

from __future__ import annotations

from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
from safetensors.torch import load_file
from torch import Tensor

from data.catalog import DataError
from data.hub import HUB, fetched
from data.tokens import HASHED, TOKENIZER_FILE, local_path
from models.slicing import State
from plugins.regular_files import IrregularFileError, require_regular
from protocol.printable import printable
from server_app.config.typed import ConfigError, choose_from

IN_A_FOLDER = ("model.safetensors", "pytorch_model.bin")
"""Names of weight files in a Hugging Face model's folder."""
TORCHVISION = "torchvision:"
SHOWN = 160
"""Characters of a torch error that a message repeats; the rest is advice for programmers."""


def read_weights(place: str) -> State:
    """Return the tensors of a .safetensors or torch file, or of a folder that holds one.

    `torchvision:ResNet18_Weights.IMAGENET1K_V1` and similar names load torchvision's files.
    """
    if place.startswith(TORCHVISION):
        return _published(place.removeprefix(TORCHVISION))
    path = _path(place)
    if path.is_dir():
        files = [path / name for name in IN_A_FOLDER if (path / name).is_file()]
        if not files:
            raise ConfigError(f"model.weights: {path} holds no {' or '.join(IN_A_FOLDER)}")
        path = files[0]
    try:
        require_regular(path)
        return load_file(path) if path.suffix == ".safetensors" else _torch_file(path)
    except IrregularFileError as error:
        raise ConfigError(f"model.weights: {error}") from error
    except Exception as error:  # torch's unpickler raises any error, depending on the bytes
        raise ConfigError(
            f"model.weights: {path} cannot be read ({_told(error)}): expected a .safetensors file, "
            "or tensors by name as torch.save writes a state_dict"
        ) from error


def tokenizer_of(place: str) -> str:
    """Return the folder of these weights; raise if it holds no tokenizer."""
    if place.startswith(HUB):
        return place
    path = _path(place)
    folder = path if path.is_dir() else path.parent
    if not (folder / TOKENIZER_FILE).is_file():
        raise ConfigError(
            f"model.weights is {place}, and {folder} holds no {TOKENIZER_FILE}: set "
            "dataset.tokenizer to the folder, the hub:NAME or the package:NAME of the weights' "
            f"own, or to {HASHED} if they were trained on hashed words"
        )
    return place if path.is_dir() else str(folder)


def _path(place: str) -> Path:
    try:
        path = fetched(place, IN_A_FOLDER[0]) if place.startswith(HUB) else local_path(place)
    except DataError as error:
        raise ConfigError(f"model.weights: {error}") from error
    if path is None:
        raise ConfigError(
            f"model.weights: {place} does not exist: expected a file, a folder, package:NAME, "
            "hub:NAME of a model on Hugging Face, or torchvision:NAME of its weights"
        )
    return path


def _published(name: str) -> State:
    """Return the tensors of torchvision's weights; they are downloaded the first time."""
    if find_spec("torchvision") is None:
        raise ConfigError(
            f"model.weights={TORCHVISION}{name} takes the package torchvision, which is not "
            "installed: pip install 'nestfl[torchvision]'"
        )
    from torchvision.models import get_weight

    try:
        weights = get_weight(name)
    except (ValueError, KeyError, TypeError) as error:  # no such class, no such weights, no class
        raise ConfigError(
            f"model.weights: torchvision has no weights {name!r}; {choose_from(name, _like(name))}"
        ) from error
    file = Path(torch.hub.get_dir(), "checkpoints", Path(urlparse(weights.url).path).name)
    try:
        state: State = weights.get_state_dict(
            progress=False, check_hash=True, map_location="cpu", weights_only=True
        )
    except Exception as error:
        if file.exists():
            raise ConfigError(f"model.weights: {file} cannot be read ({_told(error)})") from error
        raise ConfigError(
            f"model.weights: {file.name} of {TORCHVISION}{name} could not be fetched "
            f"({_told(error)}). Without a network, put that file into {file.parent}"
        ) from error
    return state


def _told(error: Exception) -> str:
    return printable(f"{type(error).__name__}: {error}", SHOWN)


def _like(name: str) -> list[str]:
    """Return the names of torchvision's image weights that are most similar to this one."""
    from torchvision import models

    names = [
        str(w) for model in models.list_models(models) for w in models.get_model_weights(model)
    ]
    return get_close_matches(name, names, n=4, cutoff=0)


def _torch_file(path: Path) -> State:
    """Return the tensors in a file of `torch.save`, also inside a training state."""
    content: Any = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict):
        raise TypeError(f"it holds a {type(content).__name__}")
    for name, tensor in content.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise TypeError(f"{name!r} names a {type(tensor).__name__}")
    return content
