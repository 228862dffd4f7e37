"""Converters between the configs of published models and the params of dtrain's blocks, for values that need code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Converter(NamedTuple):
    """Converter for the block's params in `params`. `read(config)` returns their values, or raises PublishedError;
    `write(config, params)` returns a config with these values."""

    params: tuple[str, ...]
    read: Callable[[Mapping[str, Any]], dict[str, object]]
    write: Callable[[Mapping[str, Any], Mapping[str, object]], dict[str, Any]]
