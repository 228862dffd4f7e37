"""Interface for reading new rows in pieces, each of which can be read by any process.

Listing the pieces reads as little of the files as possible; each piece is then read by the process that computes with
it. So each rank of a prediction reads only its own rows, in the same pieces as a single process would."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from declarative_train.core.amounts import list_quoted
from declarative_train.core.diagnostics.suggest import did_you_mean

_SHOWN = 6


class InputError(Exception):
    """Error: the model cannot use the new rows. The message names file and row; exit code 1."""


class InputChunk(NamedTuple):
    """Rows that were read. `start`: the number of the first one in the whole input. `columns`: Arrow or numpy values by
    name. `title`: the file's name in messages. `place`: function (row of the chunk) -> its place as text, for
    messages."""

    title: str
    start: int
    num_rows: int
    columns: Mapping[str, Any]
    place: Callable[[int], str]


class Piece(NamedTuple):
    """Rows that are not read yet. `start`: the number of the first one in the whole input. `where`: data with which the
    input finds them; it can be pickled."""

    start: int
    num_rows: int
    where: Any


Pieces = Iterator[Piece]


class Input:
    """Rows that can be read once, from first to last. `names`: the columns of the first file. `large`: the columns that
    hold whole files (images). `pieces(columns, most)` lists pieces of at most `most` rows; `read_piece` reads these
    columns of a piece. `decimal`: the decimal point of numbers in text."""

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
        """Read these columns of all rows. Yield one chunk for each piece. Raises InputError."""
        for piece in self.pieces(columns, None):
            yield self.read_piece(piece, columns)


def slices(num_rows: int, size: int) -> Pieces:
    """Yield pieces of at most `size` rows for a table of `num_rows` rows that can be read by row number."""
    return (Piece(start, min(size, num_rows - start), None) for start in range(0, num_rows, size))


def counting(title: str, row: int) -> Callable[[int], str]:
    """Return a function (row of a chunk) -> its place as text, such as `row 7 of new.csv`. `row`: the row in the file
    `title` at which the chunk begins, from 0."""
    return lambda inside: f"row {row + inside + 1:,} of {title}"


def check_columns(columns: Sequence[str], names: Sequence[str], title: str) -> None:
    missing = [name for name in columns if name not in names]
    if not missing:
        return
    listed = list_quoted(missing, _SHOWN)
    what = "the column" if len(missing) == 1 else f"{len(missing)} columns"
    raise InputError(f"{title} lacks {what} {listed}, which the model reads; help: {did_you_mean(missing[0], names)}")
