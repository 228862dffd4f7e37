"""New rows -> the batches that a prediction is made for, a piece at a time: a row each, or a window of rows each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from declarative_train.inference.fields import Fields, kept_columns
from declarative_train.inference.input import Input, Piece, Pieces

if TYPE_CHECKING:
    import pyarrow as pa

    from declarative_train.data.spec import DataSpec

PIECE_BATCHES = 4  # of a piece: enough that few are on their way, few enough that all ranks have some
Values = Mapping[str, np.ndarray]


class Batch(NamedTuple):
    """`start` is the number of its first sample in the input; `beside` are columns that stand before the answers."""

    start: int
    values: Values
    beside: pa.Table | None

    @property
    def num_rows(self) -> int:
        return len(next(iter(self.values.values())))


class Samples(Protocol):
    """`pieces` says where the samples are, in order; `batches` reads those of one piece, in any process."""

    def pieces(self) -> Pieces: ...

    def batches(self, piece: Piece) -> Iterator[Batch]: ...


class RowSamples:
    """Each row is a sample."""

    def __init__(
        self, data: DataSpec, names: Sequence[str], rows: Input, batch_rows: int, keep: Sequence[str] = ()
    ) -> None:
        """Raises UsageError and InputError."""
        self._rows, self._keep, self._batch_rows = rows, keep, batch_rows
        self._fields = Fields(data, names, rows, keep)

    def pieces(self) -> Pieces:
        return self._rows.pieces(self._fields.read_columns, PIECE_BATCHES * self._batch_rows)

    def batches(self, piece: Piece) -> Iterator[Batch]:
        whole = self._rows.read_piece(piece, self._fields.read_columns)
        for chunk, values in self._fields.of(whole):
            kept = None if not self._keep else kept_columns(chunk, self._keep)
            for begin in range(0, chunk.num_rows, self._batch_rows):
                end = min(begin + self._batch_rows, chunk.num_rows)
                cut = {name: array[begin:end] for name, array in values.items()}
                yield Batch(chunk.start + begin, cut, None if kept is None else kept.slice(begin, end - begin))
