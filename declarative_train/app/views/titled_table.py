"""Table with a title, as text or HTML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Shown(NamedTuple):
    """Table with a title. `right`: indices of the columns that are aligned to the right."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    right: tuple[int, ...] = ()
