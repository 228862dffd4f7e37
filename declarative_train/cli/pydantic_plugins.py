"""Pydantic asks for plugins of its own when it builds the first validator, and we have none.

To be able to ask, it imports `importlib.metadata`, and with it `email`, `zipfile` and forty more, even when
PYDANTIC_DISABLE_PLUGINS tells it not to look: 10 ms of every command. So it gets its answer beforehand.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import ModuleType

LOADER = "pydantic.plugin._loader"


class NoPlugins(ModuleType):
    """What stands in the loader's place, and steps aside when it is asked for anything else."""

    @staticmethod
    def get_plugins() -> tuple[()]:
        return ()

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # Python looks for `__path__` and the like
            raise AttributeError(name)
        del sys.modules[LOADER]
        return getattr(import_module(LOADER), name)


def without_plugins() -> None:
    """Call it before pydantic is imported; where it was, its own answer is left as it is."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    sys.modules.setdefault(LOADER, NoPlugins(LOADER))
