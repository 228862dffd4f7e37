"""Position of a value in a text: file, line and column, as an editor counts them."""

from typing import NamedTuple


class Span(NamedTuple):
    """A half-open range of characters in a named text.

    Lines and columns count from 1; `end_column` is the column after the last character. `path` is the file as the
    user named it, or the option that gave the value (`--set training.epochs=3`), in which case line is 1.
    """

    path: str
    line: int
    column: int
    end_line: int
    end_column: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}"

    @property
    def in_option(self) -> bool:
        """True if the text is an option of the command line, where paths are relative to the working directory."""
        return self.path.startswith("--")

    def within(self, offset: int, length: int = 1) -> "Span":
        """Return the part of a one-line span that begins `offset` characters after its start."""
        column = self.column + offset
        return Span(self.path, self.line, column, self.line, column + length)
