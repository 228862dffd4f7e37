"""Tables as arguments and results of the Python API: pandas if it is installed, otherwise pyarrow, which dtrain
requires.

The tables of a run are made from its events: one has a row per logged step, the other a row per epoch. Columns have the
names of TensorBoard's curves: `training/loss`, `training/accuracy`, `validation/loss`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from declarative_train.app.api.errors import WRONG_USE, DtrainError
from declarative_train.run.event import EpochDone, EvaluationDone, Event, StepDone
from declarative_train.run.sinks.tensorboard import step_scalars

if TYPE_CHECKING:
    import pyarrow as pa

Table = Any
"""A pandas DataFrame, or a pyarrow Table if pandas is not installed."""
Row = dict[str, float | int | None]


def as_table(rows: Sequence[Mapping[str, object]] | Sequence[pa.Table], like: object = None) -> Table:
    """Return one table, made from a list of rows or from a list of tables with consecutive rows. `like`: a DataFrame
    whose index the result gets.
    """
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
    """Convert a DataFrame, a Series (one row), a pyarrow Table, a mapping of columns, or a list of rows to a pyarrow
    Table. Raises DtrainError for anything else."""
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
            if any(not isinstance(row, Mapping) for row in rows):
                raise TypeError("each row of a list is a mapping, such as `{'age': 30, 'visits': 4}`")
            return pa.Table.from_pylist(list(rows))
    except (pa.ArrowException, AttributeError, TypeError, ValueError) as error:
        raise DtrainError(f"these rows are not a table: {error}", exit_code=WRONG_USE) from None
    if type(rows).__name__ in ("ndarray", "Tensor"):
        hint = "; help: name its columns: `pd.DataFrame(ROWS, columns=['age', 'visits'])`"
        raise DtrainError(f"rows have named columns, and a {type(rows).__name__} has none{hint}", exit_code=WRONG_USE)
    wanted = "a DataFrame, a Series of one row, a pyarrow Table, a mapping of columns, a list of rows or a path"
    raise DtrainError(f"rows must be {wanted}, not a {type(rows).__name__}", exit_code=WRONG_USE)


def step_rows(events: Iterable[Event]) -> list[Row]:
    """Return one row per logged step: the means of the training steps since the previous logged step, and the results
    of the evaluations after this step. Every row has all columns; a value that was not measured is None."""
    rows: dict[int, Row] = {}
    for event in events:
        if isinstance(event, StepDone):
            rows.setdefault(event.step, {"step": event.step, "epoch": event.epoch}).update(step_scalars(event))
        elif isinstance(event, EvaluationDone):
            rows.setdefault(event.step, {"step": event.step, "epoch": event.epoch}).update(event.values)
    return _fill([rows[step] for step in sorted(rows)])


def epoch_rows(events: Iterable[Event]) -> list[Row]:
    """Return one row per epoch: the training losses and metrics, averaged over the epoch, and the results of the
    evaluations at its end."""
    rows: list[Row] = []
    evaluated: dict[int, dict[str, float]] = {}
    for event in events:
        if isinstance(event, EvaluationDone):
            evaluated.setdefault(event.step, {}).update(event.values)
        elif isinstance(event, EpochDone):
            row: Row = {"epoch": event.epoch, "step": event.step}
            row |= event.values | evaluated.get(event.step, {})
            rows.append({**row, "seconds": event.seconds})
    return _fill(rows)


def _fill(rows: list[Row]) -> list[Row]:
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in columns} for row in rows]
