"""Search for target leakage: columns that the model reads and that are the target in another form.

target is a class    a column with one value for each class, and no value for two classes
target is a number   a column that is a multiple of the target plus a constant

Columns that match on a few training rows are compared on all given rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.data.spec import DataSpec, FieldSpec
from declarative_train.graph.checks.objective import target_in_disguise
from declarative_train.recipe.model.walk import Frame, inputs_before
from declarative_train.recipe.recipe import Recipe

if TYPE_CHECKING:
    from declarative_train.data.shared_sets import Sample

_ROWS = 2048  # rows that are compared first
_LEAST_ROWS = 20  # fewer rows may match by chance
_MOST_CLASSES = 100
_MOST_COLUMNS = 1024  # a field with more columns is an image or the like
_ROUNDING = 1e-10  # of a correlation of float32 values


def check_disguises(recipe: Recipe, data: DataSpec, rows: Sample) -> Iterator[Diagnostic]:
    if data.window is not None:
        return
    scope = recipe.model.scope
    fields = {field.name: field for field in data.fields}
    said = set[str]()
    for term in recipe.objective.losses.values():
        target = fields.get(term.target or "")
        about = term.component.about
        if target is None or len(target.columns) != 1 or target.tensor.num_elements != 1 or not about:
            continue
        wire = scope.outputs.get(term.input, term.input)
        read = inputs_before(Frame(scope), [wire])
        for field in [fields[name] for name in fields if name in read and name != target.name]:
            for column in _find_equivalent(field, target, rows, is_class=about == "classes"):
                if column not in said and column not in target.columns:
                    said.add(column)
                    key = "column" if field.component.get("column") is not None else "columns"
                    how = "has a distinct value for each class of" if about == "classes" else "is a multiple of"
                    place = recipe.span(f"data.fields.{field.name}.{key}")
                    yield target_in_disguise(place, field.name, column, target.name, how)


def _find_equivalent(field: FieldSpec, target: FieldSpec, rows: Sample, *, is_class: bool) -> Iterator[str]:
    count = len(field.columns)
    if field.tensor.num_elements != count or count > _MOST_COLUMNS:
        return
    some = [rows.first(each.name, _ROWS) for each in (field, target)]
    if some[0] is None or some[1] is None or len(some[1]) < _LEAST_ROWS:
        return
    places = _find_matches(_by_column(some[0], count), some[1].ravel(), is_class=is_class)
    if not places:
        return
    every = [rows.values(each.name) for each in (field, target)]
    if every[0] is None or every[1] is None:
        return
    columns = _by_column(every[0], count)[:, places]
    yield from (field.columns[places[at]] for at in _find_matches(columns, every[1].ravel(), is_class=is_class))


def _by_column(values: np.ndarray, count: int) -> np.ndarray:
    return values.reshape(len(values), count)


def _find_matches(columns: np.ndarray, target: np.ndarray, *, is_class: bool) -> list[int]:
    if is_class:
        classes = np.unique(target, return_inverse=True)[1].ravel()
        return [at for at, each in enumerate(columns.T) if _is_renamed(each, classes)]
    return _multiples(columns.astype(np.float64), target.astype(np.float64))


def _is_renamed(column: np.ndarray, classes: np.ndarray) -> bool:
    """Return whether the values of a column correspond one to one to the classes of a target. Return False if there is
    only one class, or more than `_MOST_CLASSES`. `classes`: class of each row, numbered 0, 1, ... without a gap."""
    count = int(classes.max()) + 1
    if not 1 < count <= _MOST_CLASSES:
        return False
    values = np.unique(column, return_inverse=True)[1].ravel()
    return int(values.max()) + 1 == count == len(np.unique(values * count + classes))


def _multiples(columns: np.ndarray, target: np.ndarray) -> list[int]:
    if len(np.unique(target[:_ROWS])) < 3:
        return []
    apart, other = columns - columns.mean(axis=0), target - target.mean()
    sizes = np.sqrt((apart**2).sum(axis=0) * (other**2).sum())
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = np.abs(apart.T @ other) / sizes
    return [int(at) for at in np.flatnonzero(correlation > 1 - _ROUNDING)]
