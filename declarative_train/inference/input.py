"""New rows to be predicted or evaluated, a piece at a time: what a piece is, and how it is read.

Whoever asks for the pieces learns where they are, and reads as little of them as can be; each is read where it is
needed, in this process or in another. So the ranks of a prediction read their own rows, and in the same pieces as one
process does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from declarative_train.core.diagnostics.suggest import did_you_mean

_SHOWN = 6


class InputError(Exception):
    """The new rows are not what the model takes: one message with the file and the row, exit 1."""


class Chunk(NamedTuple):
    """Consecutive rows, from number `start` of the whole input on; values are Arrow or numpy. `title` is the file, for
    messages, and `place` says where a row of the chunk stands."""

    title: str
    start: int
    num_rows: int
    columns: Mapping[str, Any]
    place: Callable[[int], str]


class Piece(NamedTuple):
    """Rows that have not been read, from number `start` of the whole input on; `where` means something to the input
    alone, and can be pickled."""

    start: int
    num_rows: int
    where: Any


Pieces = Iterator[Piece]


class Input:
    """Rows to be read once, front to back. `names` are the columns of the first of the `files`, `large` those of them
    that hold whole files. `pieces` gives all rows, at most so many in one; `read_piece` gives some columns of one.
    `decimal` stands before the fraction of a number that is text."""

    def __init__(
        self,
        title: str,
        names: Sequence[str],
        pieces: Callable[[Sequence[str], int | None], Pieces],
        read_piece: Callable[[Piece, Sequence[str]], Chunk],
        files: Sequence[str] = (),
        decimal: str = ".",
        large: Sequence[str] = (),
    ) -> None:
        self.title, self.names, self.large = title, tuple(names), frozenset(large)
        self.pieces, self.read_piece = pieces, read_piece
        self.files, self.decimal = tuple(files), decimal

    def read(self, columns: Sequence[str]) -> Iterator[Chunk]:
        """Raises InputError."""
        for piece in self.pieces(columns, None):
            yield self.read_piece(piece, columns)


def slices(num_rows: int, size: int) -> Pieces:
    """Rows that can be read by number."""
    return (Piece(start, min(size, num_rows - start), None) for start in range(0, num_rows, size))


def counting(title: str, row: int) -> Callable[[int], str]:
    """Places of a chunk that begins with this row of its file, from 0."""
    return lambda inside: f"row {row + inside + 1:,} of {title}"


def check_columns(columns: Sequence[str], names: Sequence[str], title: str) -> None:
    missing = [name for name in columns if name not in names]
    if not missing:
        return
    listed = ", ".join(f"`{name}`" for name in missing[:_SHOWN]) + (
        f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    )
    what = "the column" if len(missing) == 1 else f"{len(missing)} columns"
    raise InputError(f"{title} lacks {what} {listed}, which the model reads; help: {did_you_mean(missing[0], names)}")
