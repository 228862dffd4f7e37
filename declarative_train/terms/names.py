"""Lists of names, in which a name stands once."""

from __future__ import annotations

from collections.abc import Sequence


def distinct(names: Sequence[str] | None) -> Sequence[str] | None:
    """The names as they are. Raises ValueError for one that stands there again."""
    again = next((name for position, name in enumerate(names or ()) if name in (names or ())[:position]), None)
    if again is not None:
        raise ValueError(f"`{again}` is named twice: name it once")
    return names
