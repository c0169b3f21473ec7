"""Files of pre-trained models on Hugging Face."""

from __future__ import annotations

from pathlib import Path

from data.catalog import DataError

HUB = "hub:"


def fetched(place: str, name: str) -> Path:
    """Download a file of the model `hub:OWNER/NAME` unless this machine has it; return its path."""
    from huggingface_hub import hf_hub_download

    repository = place.removeprefix(HUB)
    try:
        _require(repository, name)
        return Path(hf_hub_download(repository, name))
    except Exception as error:  # whatever went wrong, the way out is the same
        reason = " ".join(str(error).split())
        here = "" if place.startswith(HUB) else f"{place} is no file or folder here, and "
        raise DataError(
            f"{here}{name} of {place} could not be fetched from Hugging Face "
            f"({type(error).__name__}: {reason}). Without a network, give the path of a folder "
            "that holds it"
        ) from error


def _require(repository: str, name: str) -> None:
    """Raise where a file is neither kept here nor published: a download asks for half a minute."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache

    if not isinstance(try_to_load_from_cache(repository, name), str):
        get_hf_file_metadata(hf_hub_url(repository, name))
