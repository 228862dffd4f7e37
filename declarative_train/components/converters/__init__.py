"""Converters of published configs, for values that need code: each turns keys of a config into params, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class PublishedError(ValueError):
    """A published model cannot be used: one line. `hint`: a fix."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class Converter(NamedTuple):
    """A converter. `read(config)` returns params, and raises PublishedError; `write(config, params)` returns a config
    that holds them."""

    params: tuple[str, ...]
    read: Callable[[Mapping[str, Any]], dict[str, object]]
    write: Callable[[Mapping[str, Any], Mapping[str, object]], dict[str, Any]]
