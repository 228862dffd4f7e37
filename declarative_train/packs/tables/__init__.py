"""Pack `tables`: fields of dates, simple models for comparison, and sources that read SQLite, tar and safetensors
files."""

from declarative_train.core.packs import Pack

_HERE = "declarative_train.packs.tables"

PACK = Pack(
    components={
        "field": {"date": f"{_HERE}.date:DateField"},
        "source": {
            "safetensors": f"{_HERE}.safetensors:SafetensorsDataset",
            "sqlite": f"{_HERE}.sqlite:SqliteDataset",
            "tar": f"{_HERE}.tar:TarDataset",
        },
    },
    compare_models=f"{_HERE}.baselines:compare",
    endings={".db": "sqlite", ".sqlite": "sqlite", ".sqlite3": "sqlite"},
)
