"""Table with a title, as text or HTML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Shown(NamedTuple):
    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    right: tuple[int, ...] = ()
