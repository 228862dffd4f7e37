"""Batches of samples from new rows, read in pieces (ranges of rows). In this module a sample is a single row; in
`windows.py` it is a window of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from declarative_train.inference.fields import RowConverter, select_columns
from declarative_train.inference.input import Input, Piece, Pieces

if TYPE_CHECKING:
    import pyarrow as pa

    from declarative_train.data.spec import DataSpec

PIECE_BATCHES = 4  # batches per piece: large enough for little overhead, small enough that all ranks have work
Values = Mapping[str, np.ndarray]


class SampleBatch(NamedTuple):
    """Batch of samples. `start`: index of the first sample among all samples of the input. `values`: a dict from field
    to array (N, ...). `kept`: the columns of the result that precede the predictions, such as copied columns of the
    input; None if there are none."""

    start: int
    values: Values
    kept: pa.Table | None

    @property
    def num_rows(self) -> int:
        return len(next(iter(self.values.values())))


class Samples(Protocol):
    """Interface for reading the samples of an input in pieces (ranges of samples). `pieces` yields the pieces in order.
    `batches` yields the batches of one piece; another process than that of `pieces` may call it."""

    def pieces(self) -> Pieces: ...

    def batches(self, piece: Piece) -> Iterator[SampleBatch]: ...


class RowSamples:
    """Samples that are single rows."""

    def __init__(
        self, data: DataSpec, names: Sequence[str], rows: Input, batch_rows: int, keep: Sequence[str] = ()
    ) -> None:
        """Prepare to read samples in batches of `batch_rows` rows. `names`: fields to read. `keep`: columns of the
        input that are copied to the result. Raises UsageError and InputError."""
        self._rows, self._keep, self._batch_rows = rows, keep, batch_rows
        self._fields = RowConverter(data, names, rows, keep)

    def pieces(self) -> Pieces:
        return self._rows.pieces(self._fields.read_columns, PIECE_BATCHES * self._batch_rows)

    def batches(self, piece: Piece) -> Iterator[SampleBatch]:
        whole = self._rows.read_piece(piece, self._fields.read_columns)
        for chunk, values in self._fields.convert(whole):
            kept = None if not self._keep else select_columns(chunk, self._keep)
            for begin in range(0, chunk.num_rows, self._batch_rows):
                end = min(begin + self._batch_rows, chunk.num_rows)
                cut = {name: array[begin:end] for name, array in values.items()}
                yield SampleBatch(chunk.start + begin, cut, None if kept is None else kept.slice(begin, end - begin))
