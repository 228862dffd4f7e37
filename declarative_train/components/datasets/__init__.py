"""Sources that a recipe can name under `data.source`."""

from __future__ import annotations

from declarative_train.components.data import Dataset
from declarative_train.components.registry import Registry

DATASETS: Registry[Dataset] = Registry(
    "source",
    __name__,
    {
        "arrow": "arrow_files.ArrowDataset",
        "csv": "csv.CsvDataset",
        "image_folder": "image_folder.ImageFolderDataset",
        "jsonl": "jsonl.JsonlDataset",
        "mix": "mix.MixDataset",
        "npy": "npy.NpyDataset",
        "parquet": "parquet.ParquetDataset",
        "safetensors": "safetensors.SafetensorsDataset",
        "sqlite": "sqlite.SqliteDataset",
        "synthetic": "synthetic.SyntheticDataset",
        "tar": "tar.TarDataset",
        "text": "text.TextDataset",
    },
)
