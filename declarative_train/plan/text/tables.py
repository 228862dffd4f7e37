"""Sections and aligned columns: how the texts of a plan are set."""

from __future__ import annotations

import re
from collections.abc import Sequence

from declarative_train.components.plugged import PLUGIN

_NUMBER = re.compile(r"[\d,]+(\.\d+)?")


def section(title: str, lines: Sequence[str]) -> str:
    """A title and its lines below it; "" when there is none."""
    return "\n".join([title, *(f"  {line}" for line in lines)]) if lines else ""


def columns(rows: Sequence[Sequence[str]], *, numbers: bool = True) -> list[str]:
    """Rows of equal length, every column as wide as its widest cell; `numbers` to the right."""
    if not rows:
        return []
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  ".join(_cell(cell, width, numbers) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _cell(cell: str, width: int, numbers: bool) -> str:
    return cell.rjust(width) if numbers and _NUMBER.fullmatch(cell) else cell.ljust(width)


def component_in_words(component: dict[str, object]) -> str:
    """The type, and the fields that are set: `adam lr 0.003 betas [0.9, 0.999]`."""
    fields = (
        f"{key} {value}"
        for key, value in component.items()
        if key not in ("type", PLUGIN) and value not in (None, False)
    )
    return " ".join([str(component["type"]), *fields])
