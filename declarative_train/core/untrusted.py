"""Untrusted input: JSON that may nest too deeply, and texts with characters that control a terminal."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

_ACTING = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})  # categories: control, format, other, line ends


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text. Raises ValueError, also for a text that nests too deeply (`json.loads` would
    raise RecursionError)."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def one_line(text: str) -> str:
    """Return `text` on one line, without characters that control a terminal."""
    return text if text.isprintable() else "".join(map(printable, text))


def in_lines(text: str) -> str:
    """Return `text` without characters that control a terminal, except line breaks and tabs."""
    return "\n".join("\t".join(map(one_line, line.split("\t"))) for line in text.split("\n"))


def printable(character: str) -> str:
    """Return the character if it is safe to print on a terminal, else a visible replacement."""
    if character in "\n\r\t":
        return " "
    return "\N{REPLACEMENT CHARACTER}" if unicodedata.category(character) in _ACTING else character
