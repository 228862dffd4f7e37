"""Conversion between dtrain's lines and columns and the positions of the language server protocol.

The protocol counts from 0. Its unit of characters is agreed between server and editor; by default it is UTF-16.
"""

from __future__ import annotations

from lsprotocol import types
from pygls.workspace import PositionCodec

from declarative_train.core.diagnostics.lines import Lines
from declarative_train.core.span import Span


class Places:
    """Converter between lines and columns of a text, as dtrain counts them, and positions of the language server
    protocol. `codec`: counts characters in the unit of the protocol, such as UTF-16 code units."""

    def __init__(self, path: str, text: str, codec: PositionCodec) -> None:
        self.lines = Lines(path, text)
        self._codec = codec

    def position(self, line: int, column: int) -> types.Position:
        """Return the protocol's position of a line and column. If they are outside the text, return the nearest
        position in it."""
        line, column = self.lines.place(self.lines.offset(line, column))
        before = self.lines.line(line)[: column - 1]
        return types.Position(line=line - 1, character=self._codec.client_num_units(before))

    def range(self, span: Span) -> types.Range:
        start = self.position(span.line, span.column)
        end = self.position(span.end_line, span.end_column)
        return types.Range(start=start, end=max(start, end, key=lambda each: (each.line, each.character)))

    def offset(self, position: types.Position) -> int:
        """Return the index in the text of a position that the editor sent (line and column, from 0)."""
        line = position.line + 1
        units, column = 0, 1
        for character in self.lines.line(line):
            if units >= position.character:
                break
            units += self._codec.client_num_units(character)
            column += 1
        return self.lines.offset(line, column)

    def whole(self) -> types.Range:
        return types.Range(start=types.Position(0, 0), end=self.position(len(self.lines) + 1, 1))


def holds(span: Span, line: int, column: int) -> bool:
    """Return whether a line and column are in a span. The position directly after the span's last character counts too,
    because a cursor is between characters."""
    return (span.line, span.column) <= (line, column) <= (span.end_line, span.end_column)
