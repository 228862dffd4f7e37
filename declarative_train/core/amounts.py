"""Texts for counts, measures and times: `1 step`, `2,000 steps`, `0.001234`, `3 min 5 s`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import floor, isfinite, log10

_SIBILANTS = ("s", "x", "z", "tch", "sh")  # "batch" has the plural "batches", but "epoch" has "epochs"
_VOWELS = "aeiou"
_PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z")


def format_count(number: int, noun: str) -> str:
    """Return a count with its noun: `1 step`, `2,000 steps`, `3 copies`. If `noun` has several words, the last one gets
    the plural."""
    return f"{number:,} {noun if number == 1 else plural(noun)}"


def list_names(names: Iterable[str], most: int = 4) -> str:
    """Return at most `most` names as one text and, if there are more, their number: `a, b and 3 more`."""
    listed = list(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")


def list_quoted(names: Iterable[str], most: int = 4) -> str:
    """Return the names as `list_names` does, each in backticks."""
    return list_names((f"`{name}`" for name in names), most)


def in_ranges(numbers: Iterable[int]) -> str:
    """Return distinct numbers as a text of ranges for messages: `0, 2 to 4, 8`."""
    ranges: list[list[int]] = []
    for each in sorted(numbers):
        if ranges and each == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], each]
        else:
            ranges.append([each])
    return ", ".join(f"{found[0]} to {found[-1]}" if len(found) > 1 else str(found[0]) for found in ranges)


def is_numeric(text: str) -> bool:
    """Return whether a text can be read as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def plural(noun: str) -> str:
    """Return the plural of a noun: `steps`, `batches`, `copies`."""
    if noun.endswith(_SIBILANTS):
        return f"{noun}es"
    if noun.endswith("y") and noun[-2] not in _VOWELS:
        return f"{noun[:-1]}ies"
    return f"{noun}s"


def format_number(value: float | None) -> str:
    """Return a number as a table cell: with four decimals, or with four significant digits below 0.01. None becomes
    `-`."""
    if value is None:
        return "-"
    if value == 0 or not isfinite(value):
        return f"{value:.4f}"
    magnitude = floor(log10(abs(value)))
    if not -4 <= magnitude < 5:
        return f"{value:.3e}"
    return f"{value:.{4 if magnitude >= -2 else 3 - magnitude}f}"


def clock(seconds: float) -> str:
    """Return a duration as a text: 42 s, 3 min 5 s, 2 h 4 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def amount(number: float, unit: str = "") -> str:
    """Return a quantity with three digits and an SI prefix: `1.2 GB`, `25 M`. Without a unit, billions are written `B`
    instead of `G`: `6.45 B`."""
    step = 0
    while number >= 999.5 and step < len(_PREFIXES) - 1:
        number, step = number / 1000, step + 1
    space = " " if unit or step else ""
    prefix = "B" if not unit and _PREFIXES[step] == "G" else _PREFIXES[step]
    return f"{number:.3g}{space}{prefix}{unit}"


def time_in_words(seconds: float) -> str:
    """Return a duration with three significant digits: `12.3 ms`, `4.5 s`, `3 h 20 min`."""
    for unit, scale in (("us", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds < 60 else clock(seconds)


def ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as a text of short ranges: `0-3, 8, 12-15`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)
