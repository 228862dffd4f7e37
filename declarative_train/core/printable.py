"""Texts without characters that a terminal would act on: data and names may hold escape sequences."""

from __future__ import annotations

import unicodedata

_ACTING = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})  # control, format, half, private, unknown, line ends


def one_line(text: str) -> str:
    """Return `text` without line breaks and without characters that a terminal would act on."""
    return text if text.isprintable() else "".join(map(printable, text))


def in_lines(text: str) -> str:
    """Return `text` as `one_line` does, with its line breaks and tabs."""
    return "\n".join("\t".join(map(one_line, line.split("\t"))) for line in text.split("\n"))


def printable(character: str) -> str:
    """Return the character, or what is shown in its place."""
    if character in "\n\r\t":
        return " "
    return "\N{REPLACEMENT CHARACTER}" if unicodedata.category(character) in _ACTING else character
