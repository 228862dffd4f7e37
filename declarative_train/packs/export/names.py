"""Names of the export formats."""

from typing import get_args

from declarative_train.app.trained import ExportDtype, ExportFormat

PUBLISHED = {"huggingface": "transformers", "timm": "timm", "torchvision": "torchvision"}  # format -> its library
NAMES: tuple[str, ...] = get_args(ExportFormat)  # the keys of PUBLISHED and of `formats.FORMATS`
DTYPES: tuple[str, ...] = get_args(ExportDtype)
