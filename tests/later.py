"""Functions and classes of a library that is imported when a test first calls one. Collection, which every worker does
for all files, then needs no library."""

from __future__ import annotations

from importlib import import_module
from operator import attrgetter
from typing import Any


class Later:
    def __init__(self, module: str, path: str = "") -> None:
        self.module, self.path = module, path

    def __getattr__(self, name: str) -> Later:
        return Later(self.module, f"{self.path}.{name}".lstrip("."))

    def __call__(self, *args: Any, **keys: Any) -> Any:
        return attrgetter(self.path)(import_module(self.module))(*args, **keys)
