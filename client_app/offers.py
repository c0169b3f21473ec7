"""Grants or refuses the work that a server asks of a deployed device: the owner decides.

A server names a data set, never a path on the device. The device downloads, imports or compiles
nothing unless its node config allows it. So an attacker who takes over the server opens only the
files that the owner offers. Clients of a simulation are not restricted.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from client_app.node_config import NodeConfig
from data.catalog import CATALOG, PartitionError, UnknownClassError
from data.hub import HUB
from data.spec import DatasetSpec
from data.tokens import HASHED, PACKAGE, identity
from protocol.failures import is_expected
from protocol.reading import shown
from protocol.work import Work

OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
"""Variables that keep Hugging Face's libraries offline; the libraries read them at their import."""

log = logging.getLogger("flwr")  # the logger that a SuperNode shows


class NotOfferedError(ValueError):
    """A request that the device's owner does not allow; no file was opened for it."""


def granted(work: Work, node: NodeConfig) -> Work:
    """Return the work in this device's terms, or raise `NotOfferedError`."""
    if work.sabotage is not None and (node.deployed or node.data is not None):
        raise NotOfferedError(
            "this device attacks nobody: fleet.attack is for the clients of a simulation"
        )
    if not node.deployed:
        return work
    if "hub" not in node.allowed:
        os.environ.update(dict.fromkeys(OFFLINE, "1"))
    if work.train.compile and "compile" not in node.allowed:
        raise NotOfferedError(f"train.compile is true, {_forbids('compile')}")
    _check_data(work.dataset, node)
    tokenizer = _tokenizer(work, node)
    return replace(work, dataset=replace(work.dataset, path=None, tokenizer=tokenizer))


def _check_data(asked: DatasetSpec, node: NodeConfig) -> None:
    """Raise unless this device has the data set, as its own files or as a part that it may load."""
    if node.files_of(asked.name) is not None:
        return
    if asked.path is not None:
        raise NotOfferedError(
            f"the run's {asked.name} is at {shown(asked.path)}, but this device opens no path that "
            f"a server names, and offers {_offered(node)}"
        )
    if not node.holds_parts:
        raise NotOfferedError(
            f"the run is on {asked.name}, but this device offers {_offered(node)}"
        )
    if asked.facts.hub and "hub" not in node.allowed:
        raise NotOfferedError(
            f"the run is on {asked.name}, which would have to be downloaded, {_forbids('hub')}; it "
            f"offers {_offered(node)}"
        )


def _tokenizer(work: Work, node: NodeConfig) -> str | None:
    """Return the tokenizer to use: this device's own if the run asks for a pre-trained one."""
    asked = work.dataset.tokenizer
    if work.dataset.holds != "tokens" or asked in (None, HASHED):
        return asked
    if node.tokenizer is None:
        _check_tokenizer(str(asked), node)
    elif node.tokenizer != asked:
        log.warning("the run's tokenizer is %s, here it is %s", shown(asked), node.tokenizer)
    used = node.tokenizer or str(asked)
    with reasons_kept_here("tokenizer", node):
        differs = work.vocabulary is not None and identity(used) != work.vocabulary
    if differs:
        raise NotOfferedError(
            f"this device's tokenizer is another than the run's ({shown(asked)}), and would make "
            "other tokens of the same text"
        )
    return used


def _check_tokenizer(asked: str, node: NodeConfig) -> None:
    """Raise unless a device without a tokenizer of its own may use the server's."""
    for prefix in (HUB, PACKAGE):
        word = prefix.removesuffix(":")
        if asked.startswith(prefix) and word in node.allowed:
            return
        if asked.startswith(prefix):
            raise NotOfferedError(
                f"the run's tokenizer is {shown(asked)}, {_forbids(word)}; nor does its node "
                "config name a tokenizer"
            )
    raise NotOfferedError(
        f"the run's tokenizer is {shown(asked)}, but this device opens no path that a server "
        "names, and its node config names no tokenizer"
    )


def _forbids(word: str) -> str:
    return f'but the node config of this device does not say allow="{word}"'


def _offered(node: NodeConfig) -> str:
    """Return the names of the data sets that this device offers; their paths stay here."""
    bundled = [name for name, facts in CATALOG.items() if not facts.hub] if node.holds_parts else []
    names = dict.fromkeys([*sorted(node.named_data), *bundled])
    return ", ".join(names) or (
        "none: expected data=PATH, data.NAME=PATH, or both partition-id and num-partitions in its "
        "node config"
    )


@contextmanager
def reasons_kept_here(what: str, node: NodeConfig) -> Iterator[None]:
    """Log problems of a device's own files on the device only: the text may quote the files."""
    try:
        yield
    except Exception as error:
        if not node.deployed or isinstance(error, PartitionError):
            raise
        if not is_expected(error):
            log.exception("this device cannot use its %s", what)
        numbers = f": {error.numbers}" if isinstance(error, UnknownClassError) else ""
        raise NotOfferedError(
            f"this device cannot use its {what}{numbers}; why is told in its own log"
        ) from error
