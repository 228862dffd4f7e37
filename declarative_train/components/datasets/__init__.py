"""Table of the source types that a recipe can name under `data.source`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from declarative_train.components.data import Dataset
from declarative_train.components.registry import Registry
from declarative_train.core.packs import find_packs

DATASETS: Registry[Dataset] = Registry(
    "source",
    __name__,
    {
        "arrow": "arrow.ArrowDataset",
        "csv": "csv.CsvDataset",
        "jsonl": "jsonl.JsonlDataset",
        "mix": "mix.MixDataset",
        "npy": "npy.NpyDataset",
        "parquet": "parquet.ParquetDataset",
        "synthetic": "synthetic.SyntheticDataset",
    },
)

_ENDINGS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".npy": "npy", ".npz": "npy", ".parquet": "parquet",
            ".pq": "parquet", ".tsv": "csv"}  # fmt: skip


@cache
def endings() -> Mapping[str, str]:
    """Return a dict from file ending, in lower case, to the type of the source that reads such files. Raises PackError
    if a pack cannot be loaded."""
    found = dict(_ENDINGS)
    for pack in find_packs().values():
        found |= pack.endings
    return found


@cache
def endings_in_folders() -> frozenset[str]:
    """Return the endings of files (images, audio) that are read from folders, where each file is one row."""
    return frozenset(ending for ending, name in endings().items() if DATASETS[name].files_column is not None)
