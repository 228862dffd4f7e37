"""Sections, aligned columns and amounts: how the texts of a plan are set."""

from __future__ import annotations

import re
from collections.abc import Sequence

from declarative_train.terms.amounts import clock

_NUMBER = re.compile(r"[\d,]+(\.\d+)?")
_PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z")


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
    fields = (f"{key} {value}" for key, value in component.items() if key != "type" and value not in (None, False))
    return " ".join([str(component["type"]), *fields])


def amount(number: float, unit: str = "") -> str:
    """`1.2 GB`, `25 M`, `6.45 B`: three digits and a prefix; a plain count has B for billions, as people say."""
    step = 0
    while number >= 999.5 and step < len(_PREFIXES) - 1:
        number, step = number / 1000, step + 1
    space = " " if unit or step else ""
    prefix = "B" if not unit and _PREFIXES[step] == "G" else _PREFIXES[step]
    return f"{number:.3g}{space}{prefix}{unit}"


def time_in_words(seconds: float) -> str:
    """`12.3 ms`, `4.5 s`, `3 h 20 min`."""
    for unit, scale in (("us", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds < 60 else clock(seconds)


def ranges(numbers: Sequence[int]) -> str:
    """`0-3, 8, 12-15` for ascending numbers."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)
