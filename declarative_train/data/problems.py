"""Diagnostics of data errors: an error of a source or value -> the diagnostic of its code."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from declarative_train.components.component import ShapeError
from declarative_train.components.data import Column, NoStatisticsError, Table
from declarative_train.core.diagnostics.diagnostic import Diagnostic, Related
from declarative_train.core.span import Span
from declarative_train.data.checks.files import (
    different_columns,
    empty_glob,
    missing_file,
    source_without_file_system,
    unreadable_source,
)
from declarative_train.data.checks.pictures import broken_picture
from declarative_train.data.checks.plugins import plugin_field_fails, plugin_source_fails
from declarative_train.data.checks.values import missing_value, not_a_whole_number, value_out_of_range
from declarative_train.data.materialize import BadSampleError
from declarative_train.data.rows import SetRows
from declarative_train.files.paths import SourceError

Place = Callable[[str | tuple[str | int, ...]], Span]
"""Function from a dotted path (or a tuple of its parts) to the place of its value, else of its nearest ancestor."""

_LOOKED_AT = 100_000  # rows, for the value that makes a column text
_OF_SOURCES: dict[str, Callable[[Span, SourceError], Diagnostic]] = {
    "different_columns": different_columns,
    "no_file_system": source_without_file_system,
    "no_match": empty_glob,
    "not_found": missing_file,
    "plugin": plugin_source_fails,
    "unreadable": unreadable_source,
}


def source_problem(span: Span, error: SourceError) -> Diagnostic:
    return _OF_SOURCES[error.problem](span, error)


def bad_sample(span: Span, error: BadSampleError, place: str, made: tuple[Related, ...] = ()) -> Diagnostic:
    """Return the diagnostic of a bad value. `place`: place of the row; `made`: the column, if `span` is another key."""
    name, message, hint = error.part.name, str(error.cause), error.cause.help
    if error.cause.problem == "plugin":
        return plugin_field_fails(span, name, message, place, hint)
    if error.cause.problem == "unreadable":
        return broken_picture(span, name, message, place, hint)
    if error.cause.problem == "missing":
        return missing_value(span, name, message, place, hint)
    if error.cause.problem == "outside":
        return value_out_of_range(span, name, message, place, hint, made)
    return not_a_whole_number(span, name, message, place, made)


def with_the_odd_value(shape_error: ShapeError, table: Table, columns: Sequence[Column]) -> ShapeError:
    """Add the first non-number to the message, if a column is text because of a few of its values."""
    for column in columns:
        if column.dtype != "object" or column.shape:
            continue
        values = table.read([column.name], slice(0, _LOOKED_AT))[column.name]
        odd = [row for row, value in enumerate(values) if value is not None and not _is_number(value)]
        if odd and 5 * len(odd) < len(values):
            where = f"`{values[odd[0]]:.40}` in {table.place(odd[0])}"
            message = f"`{column.name}` holds numbers, but also text: {where}"
            return shape_error._replace(message=message, help="write a number there, or nothing and `missing: mean`")
    return shape_error


def row_with(table: Table, training: SetRows, problem: NoStatisticsError) -> str | None:
    """Return the place of the first training row with the value."""
    import numpy as np

    if problem.value is None:
        return None
    for start, numbers in training.chunks(_LOOKED_AT):
        values = np.asarray(table.read([problem.column], numbers)[problem.column], dtype=np.float64)
        found = np.flatnonzero((values.reshape(len(values), -1) == problem.value).any(axis=1))
        if len(found):
            return table.place(int(training.at(np.asarray([start + found[0]]))[0]))
    return None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
