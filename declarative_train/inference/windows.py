"""Samples that are windows of new rows. Each prediction has the numbers of the window's first and last row in the
input.

A window contains only the rows that the model reads. For a forecast these are past rows, so the last window ends with
the last row of the input. N windows, S rows per window."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from declarative_train.components.data import Table
from declarative_train.components.datasets import DATASETS
from declarative_train.components.fields import FIELDS
from declarative_train.core.diagnostics.suggest import did_you_mean
from declarative_train.data.field_reader import BadSampleError, FieldReader, columns_of, make_reader
from declarative_train.data.prepared_set import PreparedSet
from declarative_train.data.rows import RowOrder, RowRange, SetRows, make_windows, row_order
from declarative_train.data.spec import DataSpec, FieldSpec, WindowSpec
from declarative_train.files.open_files import format_path
from declarative_train.files.paths import SourceError
from declarative_train.inference.fields import select_columns
from declarative_train.inference.input import Input, InputError, Piece, Pieces, slices
from declarative_train.inference.reading import STDIN, files_of, kind_of_file, open_input
from declarative_train.inference.sample_batches import PIECE_BATCHES, SampleBatch
from declarative_train.inference.trained import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

FIRST, LAST = "first_row", "last_row"
_PIECE_VALUES = 1 << 22  # most values per piece


def table_of(paths: Sequence[str], source: Mapping[str, object], title: str | None = None) -> tuple[Table, str]:
    """Open files as one table. Return the table and its name in messages. `paths`: paths, globs or URLs; standard input
    is not accepted. `source`: the run's `data.source`. `title`: the name in messages; None: it is made from the paths.
    Raises UsageError and InputError."""
    if STDIN in paths:
        raise UsageError("`-` is standard input, and cannot be combined with files")
    own = str(source["type"])
    files = files_of(paths)
    kind = own if own == "text" else kind_of_file(files[0], source)
    if DATASETS[kind].files_column is not None:
        raise UsageError(f"the windows of this run are of {own} rows, but {format_path(files[0])} is an image")
    settings: Mapping[str, object] = source if kind == own else {"type": kind}
    try:
        table = DATASETS.read({**settings, "path": list(files)}).open()
        return table, title or (format_path(paths[0]) if len(paths) == 1 else f"{format_path(paths[0])} and more")
    except SourceError as error:
        raise InputError(f"{error}{f'; help: {error.help}' if error.help else ''}") from None


def text_of(paths: Sequence[str], source: Mapping[str, object]) -> Input | None:
    """Return the rows of csv or JSON lines files with text as it is in the files, such as dates. Return None for other
    files. `paths` and `source` are those of `table_of`."""
    if source["type"] == "text" or kind_of_file(files_of(paths)[0], source) not in ("csv", "jsonl"):
        return None
    return open_input(paths, source)


def table_of_frame(frame: pa.Table) -> tuple[Table, str]:
    """Return a Table with the rows of the pyarrow table `frame`, and a name for this Table in messages."""
    from declarative_train.components.datasets.arrow_columns import MemoryTable

    return MemoryTable([("the frame", frame)]), "the frame"


def make_field_reader(spec: FieldSpec, table: Table, window: WindowSpec | None) -> FieldReader:
    """Return a reader that computes a field of the run from the columns of `table`. `spec`: the field. `window`: how
    the run makes windows, or None. Raises InputError if the table lacks a column or its values have another shape or
    type."""
    field = FIELDS.read(spec.component)
    columns, missed = columns_of(field, table)
    if missed:
        raise InputError(f"the column `{missed[0]}` of field `{spec.name}` is missing; help: "
                         f"{did_you_mean(missed[0], list(table.columns))}")  # fmt: skip
    shape_error = field.check(columns)
    if shape_error is not None and table.num_rows:
        raise InputError(f"field `{spec.name}`: {shape_error.message}")
    reader = make_reader(spec.name, field, columns, spec.statistics, window)
    if reader.sample != spec.tensor:
        raise InputError(f"field `{spec.name}` is {reader.sample} here, but the model needs {spec.tensor}")
    return reader


class WindowSamples:
    """Samples that are windows of rows. In each group a window begins at the first row, and then every `stride` rows.
    If rows are left at the end of the group, one more window ends with its last row. A group with fewer rows than a
    window has no window."""

    def __init__(
        self,
        data: DataSpec,
        names: Sequence[str],
        table: Table,
        title: str,
        batch_rows: int,
        keep: Sequence[str] = (),
        text: Input | None = None,
    ) -> None:
        """Find the rows of each window. `names`: fields to read. `title`: the table's name in messages. `batch_rows`:
        windows per batch. `keep`: columns of the input that are copied to the result. `text`: the rows of `table` from
        which columns are copied; None: they are copied from `table`. Raises UsageError and InputError."""
        assert data.window is not None
        specs = [spec for spec in data.fields if spec.name in names]
        self._table, self._text, self._keep, self._batch_rows = table, text, keep, batch_rows
        if unknown := [name for name in keep if name not in table.columns]:
            raise UsageError(f"--keep {unknown[0]}: {title} has no such column; help: "
                             f"{did_you_mean(unknown[0], list(table.columns))}")  # fmt: skip
        readers = [make_field_reader(spec, table, data.window) for spec in specs]
        self._cuts = {reader.name: _rows_taken(reader, data.window.length) for reader in readers}
        begin = min(int(np.min(cut)) for cut in self._cuts.values())
        self._cuts = {name: cut - begin for name, cut in self._cuts.items()}
        self.span = max(int(np.max(cut)) for cut in self._cuts.values()) + 1
        self._by = data.window.by
        for column in (data.window.by, data.window.sort):
            if column is not None and column not in table.columns:
                raise InputError(f"{title} lacks the column `{column}`, by which windows are cut; help: "
                                 f"{did_you_mean(column, list(table.columns))}")  # fmt: skip
        try:
            order = row_order(table, data.window)
        except SourceError as error:
            raise InputError(str(error)) from None
        except ValueError as error:
            raise InputError(f"{title}: {error}") from None
        self._rows, self._starts = _arrange_windows(table, data.window, order, self.span)
        if not len(self._starts) and table.num_rows:
            raise InputError(f"{title} has no {self.span} rows that follow each other, as many as the model reads")
        self._prepared = PreparedSet(title, table, self._rows, None, tuple(readers), None)
        size = self.span * sum(reader.row.num_elements for reader in readers)
        self._piece_rows = batch_rows * max(1, min(PIECE_BATCHES, _PIECE_VALUES // max(size * batch_rows, 1)))

    @property
    def kept_columns(self) -> tuple[str, ...]:
        """Names of the columns of the result that precede the predictions."""
        return tuple(dict.fromkeys([FIRST, LAST, *filter(None, [self._by]), *self._keep]))

    @property
    def _copied(self) -> list[str]:
        return [name for name in self.kept_columns if name not in (FIRST, LAST)]

    def pieces(self) -> Pieces:
        return slices(len(self._starts), self._piece_rows)

    def batches(self, piece: Piece) -> Iterator[SampleBatch]:
        for begin in range(piece.start, piece.start + piece.num_rows, self._batch_rows):
            yield self._batch(begin, min(begin + self._batch_rows, piece.start + piece.num_rows))

    def _batch(self, begin: int, end: int) -> SampleBatch:
        starts = self._starts[begin:end]
        places = starts[:, None] + np.arange(self.span)
        wanted, inverse = np.unique(places, return_inverse=True)  # windows overlap: each row is read once
        try:
            rows = self._prepared.gather(wanted)
        except BadSampleError as error:
            raise InputError(f"{self._table.place(error.row)}: {error}") from None
        except SourceError as error:
            raise InputError(str(error)) from None
        inverse = inverse.reshape(places.shape)
        values = {name: rows[name][inverse[:, cut]] for name, cut in self._cuts.items()}
        return SampleBatch(begin, values, self._describe_windows(starts))

    def _describe_windows(self, starts: np.ndarray) -> pa.Table:
        """Return a table with one row per window: the numbers of the window's first and last row in the input, counted
        from 1, and the values of `kept_columns` in its last row. `starts`: index in `_rows` at which each window
        begins."""
        import pyarrow as pa

        first, last = self._rows.at(starts), self._rows.at(starts + self.span - 1)
        found: dict[str, Any] = {FIRST: pa.array(first + 1), LAST: pa.array(last + 1)}
        if self._text is not None and self._copied:
            return pa.table(found | dict(zip(self._copied, self._whole_text.take(last).columns, strict=True)))
        read = self._table.read(self._copied, last) if self._copied else {}
        return pa.table(found | {name: _array(read[name]) for name in self._copied})

    @cached_property
    def _whole_text(self) -> pa.Table:
        import pyarrow as pa

        assert self._text is not None
        chunks = [select_columns(chunk, self._copied) for chunk in self._text.read(self._copied)]
        return pa.concat_tables(chunks, promote_options="permissive")


def _rows_taken(reader: FieldReader, length: int) -> np.ndarray:
    """Return which rows of a window a field reads, as positions within the window. The result is an array (K,), or a
    0-d array if the field reads a single row. `length`: rows per window."""
    cut = reader.cut
    return np.asarray(cut % length if isinstance(cut, int) else np.arange(length)[cut])


def _arrange_windows(table: Table, window: WindowSpec, order: RowOrder, span: int) -> tuple[SetRows, np.ndarray]:
    """Return (rows, starts). `rows`: the rows of the table, group by group and sorted within each group. `starts` (N,):
    positions in `rows` at which the N windows begin. `order`: order of the rows within a group. `span`: number of rows
    per window."""
    runs = make_windows(RowRange(0, table.num_rows), WindowSpec(1, 1, window.by, window.sort), order)
    rows, single = runs
    sizes = np.diff(single.counts)
    starts = []
    for begin, size in zip(single.begins.tolist(), sizes.tolist(), strict=True):
        if size < span:
            continue
        own = np.arange(begin, begin + size - span + 1, window.stride)
        last = begin + size - span
        starts.append(own if own[-1] == last else np.append(own, last))
    return rows, np.concatenate(starts) if starts else np.zeros(0, np.int64)


def _array(values: np.ndarray) -> Any:
    import pyarrow as pa

    if values.ndim == 1:
        return pa.array(values)
    flat = values.reshape(len(values), -1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), flat.shape[1])
