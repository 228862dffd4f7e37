"""Converters between the configs of published models and the params of dtrain's blocks, for params whose value needs
code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Converter(NamedTuple):
    """Converter between a config and some params of a block. `params`: their names. `read(config)` returns their
    values, or raises PublishedError; `write(config, params)` returns the config with their values."""

    params: tuple[str, ...]
    read: Callable[[Mapping[str, Any]], dict[str, object]]
    write: Callable[[Mapping[str, Any], Mapping[str, object]], dict[str, Any]]
