"""Checks for suspicious rows: equal rows in two sets, neighbours in time in two sets, rows sorted by class or with the
newest first, and a category with a different value in almost every row.

Only sets in memory are checked, and at most the first 65,536 rows of each.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

import numpy as np

from declarative_train.components.splits import SPLITS
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.data.checks.rows import (
    category_of_rows,
    neighbours_in_two_sets,
    newest_first,
    rows_in_two_sets,
    sorted_by_class,
)
from declarative_train.data.diagnostics import Place
from declarative_train.data.prepared_set import PreparedSet
from declarative_train.data.shared_sets import MOST_ELEMENTS, MOST_ROWS, prepare_sets
from declarative_train.data.spec import DataSpec
from declarative_train.data.split_rows import TRAINING
from declarative_train.files.paths import SourceError

_LEAST_ROWS = 20
_SHARED, _BY_CHANCE = 0.2, 0.01  # share of a set's rows that is reported; share that may be equal by chance
_DISTINCT = 0.9  # different values of a category per row
_ALIKE = 0.8  # correlation of neighbours
_RUNS = 0.1  # reported if there are fewer changes of the value than this share of those in a random order
_TIME = re.compile(r"(?i)(.*_)?(date|datetime|day|hour|month|time|timestamp|ts|week|year)(_.*)?")


def check_resemblance(
    data: DataSpec, targets: Collection[str], classes: Collection[str], span: Place
) -> Iterator[Diagnostic]:
    """Yield a warning for each suspicious resemblance between rows, such as equal rows in two sets or rows sorted by
    class. `targets`: the fields that losses compare with outputs. `classes`: the targets that are classes."""
    sets = prepare_sets(data)
    training = sets[TRAINING]
    yield from _check_order(data, training, span)
    if data.window is not None or data.mix or training.held is None or training.num_samples < _LEAST_ROWS:
        return
    held = {name: values[:MOST_ROWS] for name, values in training.held.items()}
    yield from _check_sets(data, sets, span)
    for field in data.fields:
        if field.component["type"] == "category" and field.name in held:
            columns = held[field.name].reshape(len(held[field.name]), -1)
            if len(field.columns) != columns.shape[1]:  # a column of sequences, such as tokens
                continue
            for column, values in zip(field.columns, columns.T, strict=True):
                if len(np.unique(values)) >= _DISTINCT * len(values):
                    key = "column" if field.component.get("column") is not None else "columns"
                    place = span(f"data.fields.{field.name}.{key}")
                    yield category_of_rows(place, field.name, column, len(np.unique(values)), len(values))
    singles = {name: held[name].reshape(-1) for name in targets if name in held and held[name][0].size == 1}
    yield from _check_neighbours(data, training, singles, span)
    if not data.shuffle:
        for name in [name for name in singles if name not in classes]:
            if _is_rising(singles[name]) or _is_rising(singles[name][::-1]):
                yield sorted_by_class(span("data.shuffle"), name, None, len(singles[name]))
        for name in [name for name in singles if name in classes]:
            _, counts = np.unique(singles[name], return_counts=True)
            num_rows, num_runs = len(singles[name]), 1 + int(np.count_nonzero(np.diff(singles[name])))
            by_chance = num_rows * (1 - float(np.sum((counts / num_rows) ** 2)))
            if len(counts) > 1 and num_runs < _RUNS * by_chance:
                yield sorted_by_class(span("data.shuffle"), name, num_runs, num_rows)


def _check_sets(data: DataSpec, sets: Mapping[str, PreparedSet], span: Place) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each set with many samples that also occur in the training set. Samples are compared by
    their bytes."""
    training = sets[TRAINING]
    names = [field.name for field in data.fields]
    if any(each.held is None or any(name not in each.held for name in names) for each in sets.values()):
        return  # images, or a set that is not in memory
    assert training.held is not None
    size = max(sum(field.tensor.num_elements for field in data.fields), 1)
    most = max(_LEAST_ROWS, min(MOST_ROWS, MOST_ELEMENTS // size))
    known: set[bytes] | None = None
    for name, each in sets.items():
        if name == TRAINING or each.num_samples < _LEAST_ROWS or each.held is None:
            continue
        if known is None:
            if _collision(training.held, names, most) * min(most, training.num_samples) > _BY_CHANCE:
                return
            known = set(_as_bytes(training.held, names, most))
        rows = _as_bytes(each.held, names, most)
        num_shared = sum(row in known for row in rows)
        if num_shared >= _SHARED * len(rows):
            has_own_source = data.set(name).source is not None
            yield rows_in_two_sets(
                span(f"data.split.{name}"), name, num_shared, len(rows), has_own_source=has_own_source
            )


def _as_bytes(held: Mapping[str, np.ndarray], names: Collection[str], most: int) -> list[bytes]:
    parts = [np.ascontiguousarray(held[name][:most]) for name in names]
    rows = np.concatenate([part.reshape(len(part), -1).view(np.uint8).reshape(len(part), -1) for part in parts], axis=1)
    return [row.tobytes() for row in rows]


def _collision(held: Mapping[str, np.ndarray], names: Collection[str], most: int) -> float:
    """Return an estimate of the probability that two random rows are equal by chance in all fields `names`, as if all
    columns were independent. `held`: {field: its values in memory}. `most`: only the first `most` rows are used."""
    found = 1.0
    for name in names:
        for column in held[name][:most].reshape(len(held[name][:most]), -1).T:
            _, counts = np.unique(column, return_counts=True)
            found *= float(np.sum((counts / counts.sum()) ** 2))
            if found < 1e-12:
                return found
    return found


def _check_neighbours(
    data: DataSpec, training: PreparedSet, targets: Mapping[str, np.ndarray], span: Place
) -> Iterator[Diagnostic]:
    chosen = [each.name for each in data.sets if each.split is not None and SPLITS.read(each.split).cuts_singly]
    table = training.table
    names = [name for name in table.columns if _TIME.fullmatch(name) and not table.columns[name].shape]
    if not chosen or not names or not targets:
        return
    rows = training.rows.at(np.arange(min(training.num_samples, MOST_ROWS)))
    if (np.diff(rows) <= 0).any():
        return
    for target, values in targets.items():
        correlation = _correlation(values.astype(np.float64))
        if correlation < _ALIKE:
            continue
        try:
            found = table.read(names, rows)
        except SourceError:
            return
        for column in names:
            if _is_rising(found[column]):
                yield neighbours_in_two_sets(span(f"data.split.{chosen[0]}"), chosen[0], column, target, correlation)
                return


def _check_order(data: DataSpec, training: PreparedSet, span: Place) -> Iterator[Diagnostic]:
    """Yield a diagnostic if the newest rows come first in the file (a column of times falls), but windows or a set of
    `type: last` need the oldest rows first."""
    if data.mix or (data.window is not None and (data.window.sort is not None or data.window.by is not None)):
        return
    key, effect = "data.window", "windows run backwards in time"
    if data.window is None:
        lasts = [each.name for each in data.sets if (each.split or {}).get("type") == "last"]
        unsorted = [name for name in lasts if (data.set(name).split or {}).get("sort") is None]
        if not unsorted:
            return
        key, effect = f"data.split.{unsorted[0]}", f"`{unsorted[0]}` has the oldest ones"
    table = training.table
    names = [name for name in table.columns if _TIME.fullmatch(name) and not table.columns[name].shape]
    try:
        found = table.read(names, slice(0, MOST_ROWS)) if names else {}
    except SourceError:
        return
    for column, values in found.items():
        if len(values) >= _LEAST_ROWS and _is_rising(values[::-1]):
            yield newest_first(span(key), column, effect, key.removeprefix("data."))
            return


def _correlation(values: np.ndarray) -> float:
    """Return the correlation between each value and the next one. Return 0 if fewer than half of the values are
    different from each other, as with classes."""
    if len(np.unique(values)) < len(values) // 2:
        return 0.0
    return float(np.corrcoef(values[:-1], values[1:])[0, 1])


def _is_rising(values: np.ndarray) -> bool:
    if values.dtype == object:
        values = np.asarray([str(value) for value in values])
    return len(np.unique(values)) > len(values) // 2 and bool((values[1:] >= values[:-1]).all())
