"""Names of the export formats."""

from typing import get_args

from declarative_train.app.trained import ExportDtype, ExportFormat

PUBLISHED = {"huggingface": "transformers", "timm": "timm", "torchvision": "torchvision"}  # format -> its library
NAMES: tuple[str, ...] = get_args(ExportFormat)  # those that are not in PUBLISHED are in `formats.FORMATS`
DTYPES: tuple[str, ...] = get_args(ExportDtype)
