"""Interface for reading new rows in pieces. A piece is a range of rows that any process can read.

One process lists the pieces, for which it reads as little of the files as possible. The process that computes with a
piece reads it. So each rank of a prediction reads only its own rows, in the same pieces as a single process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from declarative_train.core.amounts import list_quoted
from declarative_train.core.diagnostics.suggest import did_you_mean

_SHOWN = 6


class InputError(Exception):
    """Error: the model cannot use the new rows. The message names file and row. The command's exit code is 1."""


class InputChunk(NamedTuple):
    """Rows that were read. `title`: the file's name in messages. `start`: index of the first row in the whole input.
    `columns`: Arrow or numpy values by name. `place`: function that takes a row of the chunk and returns its file and
    row as text. `messages`: names of numpy columns whose values are lists of messages, as JSON text."""

    title: str
    start: int
    num_rows: int
    columns: Mapping[str, Any]
    place: Callable[[int], str]
    messages: frozenset[str] = frozenset()


class Piece(NamedTuple):
    """Range of rows that are not read yet. `start`: index of the first row in the whole input. `where`: what the input
    needs to find the rows, such as a file and a range of lines; it can be pickled."""

    start: int
    num_rows: int
    where: Any


Pieces = Iterator[Piece]


class Input:
    """Rows that can be read once, from first to last.

    `names`                       names of the columns in the first file
    `large`                       columns whose values are whole files (images)
    `pieces(columns, most)`       yields pieces of at most `most` rows (None: no limit)
    `read_piece(piece, columns)`  reads one of these pieces; `columns` are the same as in the call of `pieces`
    `decimal`                     decimal point of numbers in text
    """

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
        """Read `columns` of all rows in pieces, and yield one chunk of rows per piece. Raises InputError."""
        for piece in self.pieces(columns, None):
            yield self.read_piece(piece, columns)


def slices(num_rows: int, size: int) -> Pieces:
    """Yield the pieces of an input with `num_rows` rows: ranges of at most `size` rows. `Piece.where` is None, because
    `start` and `num_rows` are enough to find the rows."""
    return (Piece(start, min(size, num_rows - start), None) for start in range(0, num_rows, size))


def make_row_namer(title: str, row: int) -> Callable[[int], str]:
    """Return a function that names the rows of a chunk in messages. It takes the index of a row in the chunk and
    returns text such as `row 7 of new.csv`. `title`: name of the file. `row`: index in the file, from 0, of the chunk's
    first row."""
    return lambda inside: f"row {row + inside + 1:,} of {title}"


def check_columns(columns: Sequence[str], names: Sequence[str], title: str) -> None:
    missing = [name for name in columns if name not in names]
    if not missing:
        return
    listed = list_quoted(missing, _SHOWN)
    what = "the column" if len(missing) == 1 else f"{len(missing)} columns"
    raise InputError(
        f"{title} lacks {what} {listed}, which the run's fields read; help: {did_you_mean(missing[0], names)}"
    )
