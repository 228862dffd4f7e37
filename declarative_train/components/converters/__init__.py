"""What is more than a number in the config of a published model: a converter turns keys into params, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class PublishedError(ValueError):
    """One line: what cannot be used. `hint`: what can be done."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class Converter(NamedTuple):
    """`read(config)` gives params, and raises PublishedError; `write(config, params)` a config that says them."""

    params: tuple[str, ...]
    read: Callable[[Mapping[str, Any]], dict[str, object]]
    write: Callable[[Mapping[str, Any], Mapping[str, object]], dict[str, Any]]
