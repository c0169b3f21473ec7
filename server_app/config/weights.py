"""Pre-trained weights from files, and the tokenizer that belongs to them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from data.catalog import DataError
from data.hub import HUB, fetched
from data.tokens import HASHED, TOKENIZER_FILE, local_path
from models.slicing import State
from server_app.config.typed import ConfigError

IN_A_FOLDER = ("model.safetensors", "pytorch_model.bin")
"""What Hugging Face calls the weights in a model's folder."""


def read_weights(place: str) -> State:
    """Return the tensors of a .safetensors or a torch file, or of the folder that holds one."""
    path = _path(place)
    if path.is_dir():
        files = [path / name for name in IN_A_FOLDER if (path / name).is_file()]
        if not files:
            raise ConfigError(f"model.weights: {path} holds no {' or '.join(IN_A_FOLDER)}")
        path = files[0]
    try:
        return load_file(path) if path.suffix == ".safetensors" else _torch_file(path)
    except (OSError, RuntimeError, SafetensorError, pickle.UnpicklingError, EOFError) as error:
        raise ConfigError(f"model.weights: {path} cannot be read: {error}") from error


def tokenizer_of(place: str) -> str:
    """Return the folder of these weights, which must hold their tokenizer."""
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
            f"model.weights: {place} does not exist: expected a file, a folder, package:NAME or "
            "hub:NAME of a model on Hugging Face"
        )
    return path


def _torch_file(path: Path) -> State:
    """Return the tensors of a file of `torch.save`, also of a training state with them in it."""
    content: Any = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict) or not all(isinstance(t, Tensor) for t in content.values()):
        raise RuntimeError("expected tensors by name")
    return content
