"""Counts, measures and times as people read them: `1 step`, `2,000 steps`, `0.001234`, `3 min 5 s`."""

from __future__ import annotations

from math import floor, isfinite, log10

_SIBILANTS = ("s", "x", "z", "tch", "sh")  # batch, but epoch
_VOWELS = "aeiou"


def counted(number: int, noun: str) -> str:
    """`1 step`, `2,000 steps`, `3 copies`. Of several words the last takes the plural."""
    return f"{number:,} {noun if number == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """`steps`, `batches`, `copies`."""
    if noun.endswith(_SIBILANTS):
        return f"{noun}es"
    if noun.endswith("y") and noun[-2] not in _VOWELS:
        return f"{noun[:-1]}ies"
    return f"{noun}s"


def number(value: float | None) -> str:
    """Four decimals, as columns like them; below 0.01 four digits; `-` for none."""
    if value is None:
        return "-"
    if value == 0 or not isfinite(value):
        return f"{value:.4f}"
    magnitude = floor(log10(abs(value)))
    if not -4 <= magnitude < 5:
        return f"{value:.3e}"
    return f"{value:.{4 if magnitude >= -2 else 3 - magnitude}f}"


def clock(seconds: float) -> str:
    """Seconds as a person says them: 42 s, 3 min 5 s, 2 h 4 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
