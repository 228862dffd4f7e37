"""The names that a recipe gives: their form, the words that are taken, lists in which a name stands once."""

from __future__ import annotations

import re
from collections.abc import Sequence

NODE_WORDS = ("input", "inputs", "params", "repeat", "when")
"""The keys that every node may have beside those of its type."""
RESERVED = ("type", *NODE_WORDS)
"""What no field of a layer, param or input of a block may be called."""

NAME = r"[a-z][a-z0-9_]*"
_NAME = re.compile(NAME, re.ASCII)


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def distinct(names: Sequence[str] | None) -> Sequence[str] | None:
    """The names as they are. Raises ValueError for one that stands there again."""
    again = next((name for position, name in enumerate(names or ()) if name in (names or ())[:position]), None)
    if again is not None:
        raise ValueError(f"`{again}` is named twice: name it once")
    return names
