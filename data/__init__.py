"""Data sets and their partitions: `client_data(DatasetSpec("digits", clients=20), 3).train`."""

from data.catalog import CATALOG, DataError, DatasetFacts
from data.clients import (
    ClientData,
    all_clients,
    client_data,
    client_rows,
    device_data,
    global_test,
)
from data.formats import Split
from data.images import ImageData
from data.inputs import Inputs, read_inputs
from data.partition import partition
from data.source import Splits, load
from data.spec import PARTITION_KINDS, DatasetSpec, PartitionKind

__all__ = [
    "CATALOG",
    "PARTITION_KINDS",
    "ClientData",
    "DataError",
    "DatasetFacts",
    "DatasetSpec",
    "ImageData",
    "Inputs",
    "PartitionKind",
    "Split",
    "Splits",
    "all_clients",
    "client_data",
    "client_rows",
    "device_data",
    "global_test",
    "load",
    "partition",
    "read_inputs",
]
