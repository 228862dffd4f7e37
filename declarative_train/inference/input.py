"""Input of new rows, in pieces that any process can read.

Listing the pieces reads as little of the files as possible. Each piece is read by the process that needs it. So each
rank of a prediction reads its own rows, in the same pieces as a single process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from declarative_train.core.amounts import list_quoted
from declarative_train.core.diagnostics.suggest import did_you_mean

_SHOWN = 6


class InputError(Exception):
    """Error: the model cannot read the new rows. The message names file and row; exit code 1."""


class InputChunk(NamedTuple):
    """Rows that were read, from row `start` of the whole input on. `columns`: Arrow or numpy values. `title`: the
    file's name in messages. `place` returns where a row is, for messages."""

    title: str
    start: int
    num_rows: int
    columns: Mapping[str, Any]
    place: Callable[[int], str]


class Piece(NamedTuple):
    """Rows that are not read yet, from row `start` of the whole input on. `where`: data for the input itself, which can
    be pickled."""

    start: int
    num_rows: int
    where: Any


Pieces = Iterator[Piece]


class Input:
    """Rows that can be read once, from the first to the last. `names`: the columns of the first file. `large`: those
    with whole files in them. `pieces(columns, most)` lists pieces of at most `most` rows; `read_piece` reads columns of
    one. `decimal`: the decimal point of numbers in text."""

    def __init__(
        self,
        title: str,
        names: Sequence[str],
        pieces: Callable[[Sequence[str], int | None], Pieces],
        read_piece: Callable[[Piece, Sequence[str]], InputChunk],
        files: Sequence[str] = (),
        decimal: str = ".",
        large: Sequence[str] = (),
    ) -> None:
        self.title, self.names, self.large = title, tuple(names), frozenset(large)
        self.pieces, self.read_piece = pieces, read_piece
        self.files, self.decimal = tuple(files), decimal

    def read(self, columns: Sequence[str]) -> Iterator[InputChunk]:
        """Read all rows, piece by piece. Raises InputError."""
        for piece in self.pieces(columns, None):
            yield self.read_piece(piece, columns)


def slices(num_rows: int, size: int) -> Pieces:
    """Return pieces of a table whose rows can be read by number."""
    return (Piece(start, min(size, num_rows - start), None) for start in range(0, num_rows, size))


def counting(title: str, row: int) -> Callable[[int], str]:
    """Return a function (row of a chunk) -> its place in words, for a chunk that begins at row `row` of its file."""
    return lambda inside: f"row {row + inside + 1:,} of {title}"


def check_columns(columns: Sequence[str], names: Sequence[str], title: str) -> None:
    missing = [name for name in columns if name not in names]
    if not missing:
        return
    listed = list_quoted(missing, _SHOWN)
    what = "the column" if len(missing) == 1 else f"{len(missing)} columns"
    raise InputError(f"{title} lacks {what} {listed}, which the model reads; help: {did_you_mean(missing[0], names)}")
