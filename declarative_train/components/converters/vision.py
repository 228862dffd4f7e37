"""Of models of images."""

from __future__ import annotations

from declarative_train.components.converters import Converter

CONVERTERS: dict[str, Converter] = {}
