"""Tables in and out: pandas if it is installed, else pyarrow, which always is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from declarative_train.app.api.errors import WRONG_USE, DtrainError

if TYPE_CHECKING:
    import pyarrow as pa

Table = Any
"""A pandas DataFrame, or a pyarrow Table if pandas is not installed."""


def as_table(rows: Sequence[Mapping[str, object]] | Sequence[pa.Table], like: object = None) -> Table:
    """Return rows, or pieces of one table, as one table. `like`: a DataFrame whose index the result gets."""
    import pyarrow as pa

    pieces = [row for row in rows if isinstance(row, pa.Table)]
    made = pa.concat_tables(pieces) if pieces else pa.Table.from_pylist(list(rows))
    if find_spec("pandas") is None:
        return made
    frame = made.to_pandas()
    index = getattr(like, "index", None)
    if type(like).__name__ == "DataFrame" and index is not None and len(index) == len(frame):
        frame.index = index
    return frame


def columns_of(rows: object) -> pa.Table:
    """Return the table of a DataFrame, a Series (one row), a pyarrow Table, a mapping of columns, or a list of rows.
    Raises DtrainError."""
    import pyarrow as pa

    try:
        if isinstance(rows, pa.Table):
            return rows
        if type(rows).__name__ == "Series" and hasattr(rows, "to_frame"):
            rows = rows.to_frame().T.infer_objects()
        if type(rows).__module__.partition(".")[0] == "pandas":
            return pa.Table.from_pandas(rows, preserve_index=False)
        if isinstance(rows, Mapping):
            return pa.table({str(name): values for name, values in rows.items()})
        if isinstance(rows, list | tuple):
            return pa.Table.from_pylist(list(rows))
    except (pa.ArrowException, AttributeError, TypeError, ValueError) as error:
        raise DtrainError(f"these rows are not a table: {error}", exit_code=WRONG_USE) from None
    wanted = "a DataFrame, a Series of one row, a pyarrow Table, a mapping of columns, a list of rows or a path"
    raise DtrainError(f"rows must be {wanted}, not a {type(rows).__name__}", exit_code=WRONG_USE)
