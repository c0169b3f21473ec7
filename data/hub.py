"""Files of pre-trained models on Hugging Face."""

from __future__ import annotations

from pathlib import Path

from data.catalog import DataError

HUB = "hub:"


def fetched(place: str, name: str) -> Path:
    """Download a file of the model `hub:OWNER/NAME` unless this machine has it; return its path."""
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(place.removeprefix(HUB), name))
    except Exception as error:  # whatever went wrong, the way out is the same
        reason = " ".join(str(error).split())
        raise DataError(
            f"{name} of {place} could not be fetched from Hugging Face ({type(error).__name__}: "
            f"{reason}). Without a network, give the path of a folder that holds it"
        ) from error
