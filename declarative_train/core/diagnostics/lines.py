"""A text as an editor sees it: character offsets to lines and columns, and back.

Lines end at `\\n`, `\\r\\n` or `\\r`, as editors count them; the other breaks that `str.splitlines` and YAML 1.1 know
(form feed, NEL, line separator) do not end one. Lines and columns count from 1, in characters; byte order marks at
the start belong to the text, so that it can be written back as it was, but stand in no column.
"""

from __future__ import annotations

import re
from bisect import bisect_right

from declarative_train.core.span import Span

BYTE_ORDER_MARK = "\ufeff"

_BREAK = re.compile(r"\r\n|\n|\r")


def num_marks(text: str) -> int:
    """Byte order marks at the start: files that were joined, or saved twice, have several."""
    return len(text) - len(text.lstrip(BYTE_ORDER_MARK))


class Lines:
    """Where the lines of one text begin; `path` names it in spans."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self.starts = [num_marks(text), *(found.end() for found in _BREAK.finditer(text))]

    def __len__(self) -> int:
        return len(self.starts)

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column of the character at `offset`."""
        line = bisect_right(self.starts, offset) or 1
        column = offset - self.starts[line - 1] + 1
        return line, column if column > 0 else 1

    def span(self, start: int, end: int) -> Span:
        """The span of the characters `start` to `end`, half open."""
        line, column = self.place(start)
        end_line, end_column = self.place(end)
        return Span(self.path, line, column, end_line, end_column)

    def offset(self, line: int, column: int) -> int:
        """The inverse of `place`; what lies outside the text becomes its nearest place."""
        if line < 1:
            return self.starts[0]
        if line > len(self.starts):
            return len(self.text)
        start = self.starts[line - 1]
        return min(start + max(column - 1, 0), start + len(self.line(line)))

    def line(self, number: int) -> str:
        """The text of a line, without its break; empty beyond the end."""
        if not 1 <= number <= len(self.starts):
            return ""
        end = self.starts[number] if number < len(self.starts) else len(self.text)
        return self.text[self.starts[number - 1] : end].rstrip("\r\n")
