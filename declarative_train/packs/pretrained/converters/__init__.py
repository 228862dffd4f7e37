"""Converters between the configs of published models and the params of dtrain's blocks, for params whose value needs
code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Converter(NamedTuple):
    """Converter between the config of a published model and some params of dtrain's block for it. `params`: names of
    these params. `read`: function (config) -> values of the params; it may raise PublishedError. `write`: function
    (config, params) -> config with these values."""

    params: tuple[str, ...]
    read: Callable[[Mapping[str, Any]], dict[str, object]]
    write: Callable[[Mapping[str, Any], Mapping[str, object]], dict[str, Any]]
