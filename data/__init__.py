"""Data sets and their partitions: `client_data(DatasetSpec("digits", clients=20), 3).train`."""

from data.catalog import (
    CATALOG,
    IMAGES,
    LANGUAGE,
    TEXTS,
    DataError,
    DatasetFacts,
    ImageFacts,
    LanguageFacts,
    SeriesFacts,
    TextFacts,
)
from data.clients import (
    ClientData,
    all_clients,
    client_data,
    client_rows,
    device_data,
    global_test,
    server_data,
)
from data.examples import Examples
from data.formats import ImageSplit, ImageSplits
from data.images import ImageData
from data.inputs import Inputs, read_inputs
from data.language import LanguageData, LanguageSplit
from data.language_source import load_language
from data.partition import partition
from data.series import SeriesData, SeriesSplit
from data.source import load
from data.spec import PARTITION_KINDS, DatasetSpec, PartitionKind
from data.text_source import load_texts
from data.texts import TextData, TextSplit

__all__ = [
    "CATALOG",
    "IMAGES",
    "LANGUAGE",
    "PARTITION_KINDS",
    "TEXTS",
    "ClientData",
    "DataError",
    "DatasetFacts",
    "DatasetSpec",
    "Examples",
    "ImageData",
    "ImageFacts",
    "ImageSplit",
    "ImageSplits",
    "Inputs",
    "LanguageData",
    "LanguageFacts",
    "LanguageSplit",
    "PartitionKind",
    "SeriesData",
    "SeriesFacts",
    "SeriesSplit",
    "TextData",
    "TextFacts",
    "TextSplit",
    "all_clients",
    "client_data",
    "client_rows",
    "device_data",
    "global_test",
    "load",
    "load_language",
    "load_texts",
    "partition",
    "read_inputs",
    "server_data",
]
