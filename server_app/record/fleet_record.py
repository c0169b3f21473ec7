"""Writes fleet.json: a run's levels and clients, and the parts of the network that each holds.

It is written when the run starts, and again when clients join. The rounds' own facts are in
metrics.jsonl.
"""

from __future__ import annotations

import json
import platform
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, NotRequired, TypedDict

import torch

from data.digest import digest_of
from data.partition import client_names
from data.spec import DatasetSpec
from protocol.code import code_hash
from protocol.documents import FINITE, NOT_EMPTY, conforming, read_json
from server_app.record.files import write_text
from strategies.assignment import budget_of
from strategies.levels.cost import cost_by_exit, training_memory
from strategies.levels.planning import Level
from strategies.method import Method
from strategies.nodes.enrolment import Client

Share = Annotated[float, FINITE]


class LevelFacts(TypedDict):
    """A level: its part of the network and its costs."""

    number: int
    depth: int  # the unit that its own answer follows
    units: int  # of the whole network
    width: float | list[float]  # share of the channels; a list has one for each stage
    exits: Annotated[list[int], NOT_EMPTY]  # the units that its exits follow, its own answer last
    parameters: int
    macs: int  # multiply-accumulates of a forward pass of one example, to its own answer
    exit_macs: dict[str, int]  # the same, to each exit, by its unit
    memory: int  # bytes of training: weights, gradients, optimiser, a batch's activations
    bytes: int  # bytes of its tensors on the wire, one way
    share: Share  # share of the whole network's parameters


class ClientFacts(TypedDict):
    """A client: its level, its data and its budget."""

    level: int
    examples: int  # for training
    budget: Annotated[
        float, FINITE
    ]  # share of the full model that it affords: its own statement, or its tier's budget
    device: str
    validation: NotRequired[int]  # examples of its validation part; absent in older versions' files
    test: NotRequired[int]
    measured: NotRequired[bool]  # true if the device has measured its budget
    name: NotRequired[str]  # its name in the data, if the data has one
    levels: NotRequired[list[int]]  # the levels that it may be assigned, if several
    attacks: NotRequired[bool]  # true for one of the run's attackers


class PartFacts(TypedDict):
    """A part of the network, and the share of it that each level holds."""

    name: str  # a block or a layer, such as "stem", "layer2.1", "exit 6", "head"
    parameters: int
    held: dict[str, Share]  # by level: the share of these parameters that it holds
    own: list[int]  # levels that train a copy of their own, not shared with others


class Start(TypedDict):
    """Time, command and code of a run's start."""

    started: str  # UTC, ISO 8601
    command: str  # repeats the run; empty if it is not known
    code: str  # hash of the sources that server and clients have in common
    versions: dict[str, str]


class Resumption(Start):
    """Time, command and code of a resumed run's start."""

    after: int  # the last round before it was resumed


class Classes(TypedDict, total=False):
    """The names of the data's classes."""

    classes: list[str]  # empty for running text, and for runs of older versions


class DataFacts(TypedDict):
    """The user's own data at the start of the run."""

    train: int  # examples, before they are dealt to clients
    test: int
    content: str  # digest of the files' content


class OwnData(TypedDict, total=False):
    """The data that a resumed run must find unchanged."""

    data: DataFacts  # absent for a data set of the catalogue, and in older versions' files


class FleetRecord(Start, Classes, OwnData):
    """The content of fleet.json."""

    levels: list[LevelFacts]
    clients: dict[str, ClientFacts]  # by number
    parts: list[PartFacts]  # in the network's order
    resumed: list[Resumption]


def fleet_record(method: Method, command: str) -> FleetRecord:
    """Return the facts of a run whose clients have enrolled."""
    federation, submodels = method.federation, method.submodels
    whole = federation.task.build(submodels.whole, device="meta")
    sizes = {name: tensor.numel() for name, tensor in whole.named_parameters()}
    levels = [_level(method, level, sum(sizes.values())) for level in method.levels]
    own: OwnData = {}
    if federation.dataset.is_own:
        train, test, content = digest_of(federation.dataset)
        own = {"data": {"train": train, "test": test, "content": content}}
    return {
        **own,
        **_start(command),
        "levels": levels,
        "clients": clients_of(method),
        "parts": _parts(method, sizes),
        "resumed": [],
        "classes": list(federation.dataset.facts.classes),
    }


def clients_of(method: Method) -> dict[str, ClientFacts]:
    """Return the facts of all clients, by number."""
    return {
        str(number): _client(method, method.clients[number]) for number in sorted(method.clients)
    }


def measured_budgets(fleet: FleetRecord) -> dict[str, float]:
    """Return the budgets that devices have measured, by the client's number."""
    clients = fleet["clients"].items()
    return {number: client["budget"] for number, client in clients if client.get("measured")}


def resumed(first: FleetRecord, again: FleetRecord, after: int) -> FleetRecord:
    """Return the record of a resumed run: that of the first start, with new facts added.

    Clients that have not come again are kept, because they have trained.
    """
    start: Resumption = {
        "started": again["started"],
        "command": again["command"],
        "code": again["code"],
        "versions": again["versions"],
        "after": after,
    }
    clients = {**first["clients"], **again["clients"]}
    known: FleetRecord = {**again, **first}  # an older version may have recorded less
    return {
        **known,
        "clients": {number: clients[number] for number in sorted(clients, key=int)},
        "resumed": [*first["resumed"], start],
    }


def read_fleet(file: Path) -> FleetRecord | None:
    """Return the content of fleet.json; None if it is missing or of an older version."""
    try:
        record: FleetRecord = read_json(file, dict)
    except FileNotFoundError:
        return None
    if not FleetRecord.__required_keys__ <= record.keys():
        return None
    conforming(record, FleetRecord, file)
    return record


def write_fleet(file: Path, record: FleetRecord) -> None:
    """Write fleet.json; a kill leaves the old file or the new one."""
    write_text(file, json.dumps(record, indent=1) + "\n")


def _start(command: str) -> Start:
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "code": code_hash(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "flwr": version("flwr"),
            "nestfl": _own_version(),
        },
    }


def _own_version() -> str:
    """Return nestfl's version, also in a Flower bundle, which is no installed package."""
    try:
        return version("nestfl")
    except PackageNotFoundError:
        project = Path(__file__).resolve().parents[2] / "pyproject.toml"
        return str(tomllib.loads(project.read_text())["project"]["version"])


def _level(method: Method, level: Level, whole: int) -> LevelFacts:
    federation = method.federation
    task, train = federation.task, federation.train
    by_exit = cost_by_exit(task, level.slice, train.batch_size)
    exits, width = list(level.slice.exits or (task.units,)), level.slice.width
    form = method.submodels.at(level).form.values()
    return {
        "number": level.number,
        "depth": level.slice.kept_units(task.units),
        "units": task.units,
        "width": list(width) if isinstance(width, tuple) else width,
        "exits": exits,
        "parameters": by_exit[-1].parameters,
        "macs": by_exit[-1].macs,
        "exit_macs": {str(unit): c.macs for unit, c in zip(exits, by_exit, strict=True)},
        "memory": training_memory(by_exit[-1], train),
        "bytes": sum(tensor.numel() * tensor.element_size() for tensor in form),
        "share": by_exit[-1].parameters / whole,
    }


def _client(method: Method, client: Client) -> ClientFacts:
    levels = sorted(level.number for level in method.levels_of(client))
    facts: ClientFacts = {
        "level": method.level_of(client).number,
        "examples": client.profile.examples,
        "budget": budget_of(client, method.federation.fleet),
        "device": client.profile.device,
        "validation": client.profile.validation,
        "test": client.profile.test,
    }
    if client.profile.measured:
        facts["measured"] = True
    if (name := _name(method.federation.dataset, client)) is not None:
        facts["name"] = name
    if len(levels) > 1:
        facts["levels"] = levels
    if client.number in method.federation.attackers:
        facts["attacks"] = True
    return facts


def _name(data: DatasetSpec, client: Client) -> str | None:
    """Return a client's name in the data, if its part is a client of the data's own."""
    part, parts = client.profile.partition, client.profile.partitions
    if not data.is_natural or part is None or parts is None:
        return None
    return client_names(replace(data, clients=parts))[part]


def _parts(method: Method, sizes: Mapping[str, int]) -> list[PartFacts]:
    submodels = {level.number: method.submodels.at(level) for level in method.levels}
    tensors: dict[str, list[str]] = {}
    for name, part in zip(sizes, part_names(sizes), strict=True):
        tensors.setdefault(part, []).append(name)
    found: list[PartFacts] = []
    for part, names in tensors.items():
        parameters = sum(sizes[name] for name in names)
        held, own = {}, []
        for number, submodel in submodels.items():
            kept = [name for name in names if name in submodel.form]
            count = sum(submodel.form[name].numel() for name in kept)
            held[str(number)] = round(count / parameters, 6)
            if kept and all(submodel.map.regions[name].banked for name in kept):
                own.append(number)
        found.append({"name": part, "parameters": parameters, "held": held, "own": own})
    return found


def part_names(tensors: Iterable[str]) -> list[str]:
    """Return the block of each tensor: `layer2.1` of `layer2.1.conv1.weight`.

    A tensor without a number in its name belongs to the stem or the head, before or after the
    blocks; in a network without blocks its layer counts as its block.
    """
    names, found = list(tensors), list[str]()
    blocks = [_block(name) for name in names]
    first = next((place for place, block in enumerate(blocks) if block), None)
    for place, (name, block) in enumerate(zip(names, blocks, strict=True)):
        if block is not None:
            found.append(block)
        elif first is None:
            found.append(name.partition(".")[0])
        else:
            found.append("stem" if place < first else "head")
    return found


def _block(name: str) -> str | None:
    if early := re.match(r"exits\.(\d+)\.", name):
        return f"exit {early[1]}"
    numbered = re.match(r"(?:[^\d.][^.]*\.)+?\d[^.]*(?:\.\d+)*(?=\.)", name)
    return numbered[0] if numbered else None
