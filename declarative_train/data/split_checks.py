"""Division of the rows into sets (by `split_rows.py`), and checks of the result: empty sets, rows that two sets share,
classes that a set lacks."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from declarative_train.components.component import Metric
from declarative_train.components.data import Dataset, Table
from declarative_train.components.split import Split
from declarative_train.core.amounts import format_count
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.data.checks.samples import (
    empty_set,
    group_in_two_sets,
    interleaved_windows,
    rows_without_order,
    set_of_one_answer,
    set_of_the_same_rows,
    set_without_class,
    sorted_as_text,
    split_does_not_fit,
)
from declarative_train.data.diagnostics import DataDraft, Place
from declarative_train.data.rows import RowChain, RowOrder, RowRange, RowWindows, SetRows, row_order
from declarative_train.data.shared_sets import prepare_sets
from declarative_train.data.source import arrange_rows, find_usable_rows
from declarative_train.data.spec import DataSpec, FieldSpec, WindowSpec
from declarative_train.data.split_rows import TRAINING, SplitError, split_rows
from declarative_train.files.open_files import format_path

MOST_CLASSES = 20  # a message names the classes if there are at most so many
_NOT_WHICH = {"rows"}  # keys that decide how many rows there are, but not which ones


@dataclass(frozen=True, slots=True)
class RowsOfSet:
    """Rows of one set. `table`: the table that contains them. `rows`: their numbers in the table, in the order of the
    set's samples. `windows`: the windows that are cut from them; None: each row is a sample. `source`: name of the set
    if it has a source of its own; None: it is taken from `data.source`."""

    source: str | None
    table: Table
    rows: SetRows
    windows: RowWindows | None


def divide(draft: DataDraft, tables: Mapping[str | None, Table]) -> dict[str, RowsOfSet] | None:
    """Return the rows of every set, in the order of the recipe. If the rows cannot be divided or a set is empty, report
    it and return None. `tables`: table of each source."""
    by, sort = (None, None) if draft.window is None else (draft.window.by, draft.window.sort)
    found: dict[str, RowsOfSet] = {}
    try:
        # before the split, because sets of `type: last` are cut in this order too
        order = row_order(tables[None], draft.window)
        cuts = split_rows(tables[None], draft.section.split, draft.seed, by, sort)
        _check_cuts(draft, tables[None], cuts)
        cuts = _usable(draft, tables[None], cuts)
        found |= _set_rows(None, tables[None], cuts, draft.window, order)
        for name, table in tables.items():
            if name is not None:
                whole = _usable(draft, table, {name: RowRange(0, table.num_rows)})
                found |= _set_rows(name, table, whole, draft.window, row_order(table, draft.window))
    except SplitError as error:
        draft.report(split_does_not_fit(draft.span(f"data.split.{error.name}"), error.name, str(error)))
        return None
    except ValueError as error:
        draft.report(rows_without_order(draft.span("data.window.sort"), sort or "", str(error)))
        return None
    ordered = {name: found[name] for name in (TRAINING, *draft.section.split) if name in found}
    empty = [problem for name, each in ordered.items() if (problem := _if_empty(draft, name, each)) is not None]
    empty += _empty_sources(draft, ordered[TRAINING])
    draft.diagnostics += empty
    return None if empty else ordered


def _usable(draft: DataDraft, table: Table, rows: Mapping[str, SetRows]) -> dict[str, SetRows]:
    kept, skipped = find_usable_rows(table, rows, draft.section.fields, skips=draft.skips)
    draft.skipped += [each for found in skipped.values() for each in found]
    return kept


def _empty_sources(draft: DataDraft, training: RowsOfSet) -> list[Diagnostic]:
    if not isinstance(training.rows, RowChain):
        return []
    names = [name for name, _ in training.table.members]
    lacking = [name for name, piece in zip(names, training.rows.pieces, strict=True) if not len(piece)]
    message = "it has no row for training"
    return [empty_set(draft.span(f"data.source.of.{name}"), name, message, "leave it out") for name in lacking]


def _check_cuts(draft: DataDraft, main: Table, cuts: Mapping[str, SetRows]) -> None:
    """Report windows, and divisions of the rows into sets, that are possible but probably not intended."""
    for diagnostic in group_in_two_sets(main, cuts, draft.section.split, draft.span):
        draft.report(diagnostic)
    sorts = {f"data.split.{name}.sort": getattr(split, "sort", None) for name, split in draft.section.split.items()}
    sorts["data.window.sort"] = None if draft.window is None else draft.window.sort
    for place, column in sorts.items():
        if column is not None and (found := sorted_as_text(draft.span(place), main, column)) is not None:
            draft.report(found)
    order = None if draft.window is None or draft.window.by is not None else draft.window.sort
    if order is not None:
        found_in = (interleaved_windows(draft.span("data.window.sort"), each, order) for each in main.tables or (main,))
        if (found := next(filter(None, found_in), None)) is not None:
            draft.report(found)


def _if_empty(draft: DataDraft, name: str, each: RowsOfSet) -> Diagnostic | None:
    place = draft.span("data.split" if name == TRAINING else f"data.split.{name}")
    if not len(each.rows) and not each.table.num_rows:
        message, at = "the source has columns but no rows", draft.span("data.source.path")
        return empty_set(at, name, message, None) if name == TRAINING else None
    if not len(each.rows):
        message = (
            "the other sets use all rows"
            if name == TRAINING
            else "no row is left for it, or none matches its condition"
        )
        return empty_set(place, name, message, "make the other sets smaller" if name == TRAINING else None)
    if each.windows is None or len(each.windows):
        return None
    of = "" if draft.window is None or draft.window.by is None else f" with the same `{draft.window.by}`"
    message = f"its {format_count(len(each.rows), 'row')} do not include {each.windows.length} consecutive ones{of}"
    return empty_set(draft.span("data.window.length"), name, message, "make the window shorter")


def _set_rows(
    source: str | None, table: Table, rows: Mapping[str, SetRows], window: WindowSpec | None, order: RowOrder
) -> dict[str, RowsOfSet]:
    return {name: RowsOfSet(source, table, *found) for name, found in arrange_rows(rows, window, order).items()}


def find_overlaps(
    source: Dataset, split: Mapping[str, Split], tables: Mapping[str | None, Table], span: Place
) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each set that has a source of its own, if another set reads one of the same files. Sets
    that are divided from one source are not examined: they never share a row."""
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
        return "the same generated rows" if kinds[0] == kinds[1] else None
    if table is None or other_table is None:
        return None
    files = {os.path.realpath(path): path for path in other_table.files}
    same = [path for path in table.files if os.path.realpath(path) in files]
    return f"`{format_path(same[0])}`" if same else None


def find_missing_classes(data: DataSpec, targets: Collection[str], span: Place) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each set that lacks a class of a target, if another set has rows of this class.

    A target is checked only if all sets are in memory. Targets with several values per row and more than `MOST_CLASSES`
    classes, such as tokens of texts, are not checked, because every set lacks some of their classes.
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


def find_undefined_metrics(
    data: DataSpec, metrics: Iterable[tuple[str, Metric, str]], span: Place
) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each metric that is nan on an evaluated set, whatever the model predicts, for example
    because all targets are equal. Only sets in memory are checked. `metrics`: (name, component, target) of each metric.
    """
    sets = {name: each.held or {} for name, each in prepare_sets(data).items() if name != TRAINING}
    for metric, component, target in metrics:
        for name, held in sets.items():
            values = held.get(target, np.empty(0))
            if len(values) and component.is_undefined(values):
                what = f"`{target}`" if np.all(values == values[:1]) else f"value in an element of `{target}`"
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
        hint = f"keep the share of each class: {{type: stratified, fraction: {fraction}, column: {column}}}"
        if name == TRAINING or split.get("type") not in ("random", "last"):
            hint = "make sure that each class has rows in every set, as `type: stratified` does"
        if data.window is not None:
            hint = "windows need consecutive rows: make the set larger, or set `type: grouped`"
        num_rows = data.set(name).num_samples
        if num_rows < len(every):
            hint = f"its {format_count(num_rows, 'row')} cannot contain every class: make it larger"
        place = span("data.split" if name == TRAINING else f"data.split.{name}")
        yield set_without_class(place, name, _name_classes(field, lacking, len(every)), hint)


def _name_classes(field: FieldSpec, lacking: list[Any], num_classes: int) -> str:
    """Return the clause of a message that names the missing classes: the first four of them and, if there are many
    classes, how many are missing."""
    names = [_name_class(field, each) for each in lacking[:4]]
    if num_classes > MOST_CLASSES and len(lacking) > len(names):
        return f"of {len(lacking):,} of the {num_classes:,} classes of `{field.name}`: {', '.join(names)}, ..."
    return f"whose `{field.name}` is {' or '.join(names)}" + (", ..." if len(lacking) > len(names) else "")


def _name_class(field: FieldSpec, number: float) -> str:
    """Return the name of a class for a message: its number, and the value in the column if the field has a
    vocabulary."""
    found = field.statistics.get("vocabulary")
    vocabulary = found[0] if isinstance(found, list) and len(found) == 1 else None
    unknown = field.component.get("unknown")
    at = int(number) - (isinstance(unknown, int) and number > unknown)
    if not isinstance(vocabulary, list) or number == unknown or at >= len(vocabulary):
        return f"{number:g}"
    return f"{number:g} (`{vocabulary[at]}`)"
