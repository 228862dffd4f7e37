"""Overlap of sets: sets that share rows with another one, and sets that lack a class of the target."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from declarative_train.components.component import Metric
from declarative_train.components.data import Dataset, Split, Table
from declarative_train.core.amounts import counted
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.data.checks.samples import set_of_one_answer, set_of_the_same_rows, set_without_class
from declarative_train.data.prepared_sets import prepare_sets
from declarative_train.data.problems import Place
from declarative_train.data.spec import DataSpec, FieldSpec
from declarative_train.data.splitting import TRAINING
from declarative_train.files.open_files import format_path

MOST_CLASSES = 20  # that are named one by one
_NOT_WHICH = {"rows"}  # how many there are, and not which ones


def overlaps(
    source: Dataset, split: Mapping[str, Split], tables: Mapping[str | None, Table], span: Place
) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each own source of a set that is also read by training or by another set.

    Sets that are divided from one source never share a row.
    """
    known: list[tuple[str, str, Dataset, Table | None]] = [("training", "data.source", source, tables.get(None))]
    for name, each in split.items():
        own = each.own_source
        if own is None:
            continue
        place = f"data.split.{name}.source"
        for other, where, dataset, table in known:
            found = _find_shared(own, tables.get(name), dataset, table)
            if found is not None:
                key = f"{place}.path" if own.paths else place
                yield set_of_the_same_rows(span(key), name, other, found, span(f"{where}.path"))
                break
        known.append((name, place, own, tables.get(name)))


def _find_shared(own: Dataset, table: Table | None, other: Dataset, other_table: Table | None) -> str | None:
    if not own.paths or not other.paths:
        kinds = [{key: item for key, item in each.as_data().items() if key not in _NOT_WHICH} for each in (own, other)]
        return "the same made rows" if kinds[0] == kinds[1] else None
    if table is None or other_table is None:
        return None
    files = {os.path.realpath(path): path for path in other_table.files}
    same = [path for path in table.files if os.path.realpath(path) in files]
    return f"`{format_path(same[0])}`" if same else None


def without_class(data: DataSpec, targets: Collection[str], span: Place) -> Iterator[Diagnostic]:
    """Yield each set held in memory that has no row of some class of a target, though another set has.

    Targets with more than `MOST_CLASSES` are checked where a row is of one class: of the tokens of a text, each set
    lacks many.
    """
    for field in data.fields:
        if field.name not in targets:
            continue
        seen: dict[str, set[Any]] = {}
        for name, each in prepare_sets(data).items():
            if each.held is None or field.name not in each.held:
                break
            values = np.unique(each.held[field.name])
            if len(values) > MOST_CLASSES and field.tensor.shape:
                break
            seen[name] = set(values.tolist())
        else:
            yield from _sets_without_class(data, field, seen, span)


def undefined_metrics(data: DataSpec, metrics: Iterable[tuple[str, Metric, str]], span: Place) -> Iterator[Diagnostic]:
    """Yield each metric (name, component, target) that is nan in a set that is evaluated and held in memory."""
    sets = {name: each.held or {} for name, each in prepare_sets(data).items() if name != TRAINING}
    for metric, component, target in metrics:
        for name, held in sets.items():
            values = held.get(target, ())
            if len(values) and component.is_undefined(values):
                what = f"`{target}`" if (values == values[:1]).all() else f"value in an element of `{target}`"
                yield set_of_one_answer(span(f"data.split.{name}"), name, what, metric)


def _sets_without_class(
    data: DataSpec, field: FieldSpec, seen: Mapping[str, set[Any]], span: Place
) -> Iterator[Diagnostic]:
    every = set[Any]().union(*seen.values())
    for name, values in seen.items():
        lacking = sorted(every - values)
        if not lacking:
            continue
        split = data.set(name).split or {}
        column = field.columns[0] if len(field.columns) == 1 else "COLUMN"
        fraction = split.get("fraction", 0.1)
        hint = f"cut it with the share of each: {{type: stratified, fraction: {fraction}, column: {column}}}"
        if name == TRAINING or split.get("type") not in ("random", "last"):
            hint = "see that each class has rows in every set, as `type: stratified` does"
        num_rows = data.set(name).num_samples
        if num_rows < len(every):
            hint = f"its {counted(num_rows, 'row')} cannot hold each class: make it larger"
        place = span("data.split" if name == TRAINING else f"data.split.{name}")
        yield set_without_class(place, name, _name_classes(field, lacking, len(every)), hint)


def _name_classes(field: FieldSpec, lacking: list[Any], num_classes: int) -> str:
    """Return the missing classes: a few by number and word, many as a count with the first ones."""
    names = [_name_class(field, each) for each in lacking[:4]]
    if num_classes > MOST_CLASSES and len(lacking) > len(names):
        return f"of {len(lacking):,} of the {num_classes:,} classes of `{field.name}`: {', '.join(names)}, ..."
    return f"whose `{field.name}` is {' or '.join(names)}" + (", ..." if len(lacking) > len(names) else "")


def _name_class(field: FieldSpec, number: float) -> str:
    """Return the name of a class: its number, and the word that it stands for."""
    found = field.statistics.get("vocabulary")
    vocabulary = found[0] if isinstance(found, list) and len(found) == 1 else None
    unknown = field.component.get("unknown")
    at = int(number) - (isinstance(unknown, int) and number > unknown)
    if not isinstance(vocabulary, list) or number == unknown or at >= len(vocabulary):
        return f"{number:g}"
    return f"{number:g} (`{vocabulary[at]}`)"
