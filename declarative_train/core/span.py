"""Span: position of a value in a text, by file, line and column, as an editor counts them."""

from typing import NamedTuple


class Span(NamedTuple):
    """Half-open range of characters in a named text.

    Lines and columns count from 1. `end_column` is the column after the last character. `path` is the file as the user
    named it, or the command-line option that contains the value (`--set training.epochs=3`, with line 1)."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}"

    @property
    def in_option(self) -> bool:
        """True if the text is an option of the command line. Paths in it are relative to the working directory."""
        return self.path.startswith("--")

    def within(self, offset: int, length: int = 1) -> "Span":
        """Return the span of `length` characters that begins `offset` characters after the start of this one-line
        span."""
        column = self.column + offset
        return Span(self.path, self.line, column, self.line, column + length)
