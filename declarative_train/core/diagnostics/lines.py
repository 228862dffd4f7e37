r"""Lines of a text: conversion between character offsets and line and column, as an editor counts them.

Lines end at `\n`, `\r\n` or `\r`. Other line breaks of `str.splitlines` and YAML 1.1 (form feed, NEL, line separator)
do not end a line here. Lines and columns count from 1, in characters. Byte order marks at the start are part of the
text, so that it can be written back unchanged, but they are not counted as columns."""

from __future__ import annotations

import re
from bisect import bisect_right

from declarative_train.core.span import Span

BYTE_ORDER_MARK = "\ufeff"

_BREAK = re.compile(r"\r\n|\n|\r")


def num_marks(text: str) -> int:
    """Return the number of byte order marks at the start of a text. A file that was joined or saved twice has
    several."""
    return len(text) - len(text.lstrip(BYTE_ORDER_MARK))


class Lines:
    """Text with the offsets at which its lines start. `path` is the file name to put into spans."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self.starts = [num_marks(text), *(found.end() for found in _BREAK.finditer(text))]

    def __len__(self) -> int:
        return len(self.starts)

    def place(self, offset: int) -> tuple[int, int]:
        """Return the line and column of the character at `offset`, both counted from 1."""
        line = bisect_right(self.starts, offset) or 1
        column = offset - self.starts[line - 1] + 1
        return line, column if column > 0 else 1

    def span(self, start: int, end: int) -> Span:
        """Return the span of the characters from `start` (inclusive) to `end` (exclusive)."""
        line, column = self.place(start)
        end_line, end_column = self.place(end)
        return Span(self.path, line, column, end_line, end_column)

    def offset(self, line: int, column: int) -> int:
        """Return the offset in the text of a line and column, both counted from 1. For a position outside the text,
        return the nearest offset."""
        if line < 1:
            return self.starts[0]
        if line > len(self.starts):
            return len(self.text)
        start = self.starts[line - 1]
        return min(start + max(column - 1, 0), start + len(self.line(line)))

    def line(self, number: int) -> str:
        """Return the text of line `number` without its line break, or "" if the text has fewer lines."""
        if not 1 <= number <= len(self.starts):
            return ""
        end = self.starts[number] if number < len(self.starts) else len(self.text)
        return self.text[self.starts[number - 1] : end].rstrip("\r\n")
