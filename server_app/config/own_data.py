"""A new run on data of one's own: what its files say becomes part of its configuration."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from data.catalog import DataError
from data.spec import OWN_DATA, DatasetSpec
from server_app.config.typed import ConfigError, build


def with_own_data(values: Mapping[str, Any], given: Collection[str]) -> Mapping[str, Any]:
    """Return the values with the facts of the run's own data, and the clients that it has.

    The keys that were `given` by whoever starts the run are not changed.
    """
    if values["dataset"].get("name") not in OWN_DATA:
        return values
    from data.look import completed

    spec = build(DatasetSpec, values["dataset"], "dataset")
    try:
        known = completed(spec)
        clients = _clients(known, given, values)
    except DataError as error:
        raise ConfigError(f"dataset: {error}") from error
    values = {**values, "dataset": {**asdict(known), "clients": clients}}
    if clients == spec.clients:
        return values
    return {**values, "fleet": {**values["fleet"], "clients": clients}}


def _clients(spec: DatasetSpec, given: Collection[str], values: Mapping[str, Any]) -> int:
    """Return the number of clients: that of the data, unless one was given or nodes were named."""
    if not spec.is_natural:
        return spec.clients
    from data.own_source import own_owners
    from data.partition import require_clients

    owners = own_owners(spec)
    chosen = bool({"fleet.clients", "dataset.clients"} & {*given}) or values["fleet"].get("nodes")
    if chosen:
        require_clients("fleet.clients", spec.clients, owners)
    return spec.clients if chosen else len(owners.names)
