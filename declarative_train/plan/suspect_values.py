"""Checks of the numbers in the columns of a table: marks of missing values, and targets that never change."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.data.shared_sets import Sample
from declarative_train.data.spec import DataSpec, FieldSpec
from declarative_train.plan.checks.inputs import constant_target, mark_of_missing
from declarative_train.plan.input_scale import as_in_the_file, key_of_columns
from declarative_train.recipe.recipe import Recipe

_MARKS = np.array([s * int(digit * n) for digit in "98" for n in range(1, 7) for s in (1, -1)], np.float64)
_LEAST_ROWS = 20  # of a column, before its values are compared
_LEAST_MARKED = 3
_MOST_COLUMNS = 1024  # a field with more columns is an image or the like


def check_values(recipe: Recipe, data: DataSpec, rows: Sample) -> Iterator[Diagnostic]:
    targets = {term.target: name for name, term in recipe.objective.losses.items()}
    for field in data.fields:
        columns = _columns_in_the_file(field, rows)
        if columns is None or len(columns) < _LEAST_ROWS:
            continue
        place = recipe.span(f"data.fields.{field.name}.{key_of_columns(field)}")
        for name, values in zip(field.columns, columns.T, strict=True):
            found = _find_mark(values)
            if found is not None and found[0] != field.component.get("missing"):
                yield mark_of_missing(place, name, *found)
        if field.name in targets and rows.has_all_training and (columns == columns[0]).all():
            yield constant_target(place, field.name, targets[field.name], columns[0].tolist())


def _columns_in_the_file(field: FieldSpec, rows: Sample) -> np.ndarray | None:
    """Return the numbers of a field in the sampled training rows `rows`, as an array (rows, columns). They are the
    numbers in the data file, before `scale` and `normalize`. Return None if the field is not made of number columns, or
    if its values are not available."""
    count = len(field.columns)
    if field.component.get("type") != "tensor" or not 0 < count <= _MOST_COLUMNS:
        return None
    if field.tensor.num_elements != count:
        return None
    values = rows.first(field.name, rows.num_training)
    if values is None or values.dtype == bool:
        return None
    return as_in_the_file(field, np.asarray(values, np.float64)).reshape(-1, count)


def _find_mark(values: np.ndarray) -> tuple[float, int, tuple[float, float]] | None:
    """Return a number that probably marks missing values in a column, such as -999, as (mark, number of rows with it,
    (least, greatest) of the other rows); None if there is none.

    A mark is the least or the greatest value, has only the digit 9 or only the digit 8, and is in several rows. It is
    farther from all other values than any two of them are from each other.
    """
    for mark in (values.min(), values.max()):
        nearest = _MARKS[np.abs(_MARKS - mark).argmin()]
        marked = np.abs(values - mark) <= 1e-6 * abs(mark)
        others = values[~marked]
        if abs(nearest - mark) > 1e-4 * abs(mark) or marked.sum() < _LEAST_MARKED or len(others) < _LEAST_ROWS:
            continue
        low, high = others.min(), others.max()
        if low < high and min(abs(mark - low), abs(mark - high)) > high - low:
            return float(nearest), int(marked.sum()), (float(low), float(high))
    return None
