"""Statistics of fields (means, vocabularies): computed from the training rows, read from a cache on disk, or taken
from an earlier run.

If a model starts from the weights of a run, it was trained on values that were computed with the statistics of that
run. Other statistics would change the meaning of the values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from declarative_train.components.data import BadValueError, Field, Table
from declarative_train.components.fields.columns import is_glob
from declarative_train.core.amounts import format_count
from declarative_train.core.diagnostics.diagnostic import Diagnostic, Related
from declarative_train.core.span import Span
from declarative_train.data.checks.samples import field_of_another_run, value_unknown_to_run
from declarative_train.data.field_reader import BadSampleError, FieldReader, chunk_rows, column_names
from declarative_train.data.rows import SetRows
from declarative_train.data.spec import FieldSpec
from declarative_train.files.cache import cache_path, load, save
from declarative_train.files.paths import SourceError

Problem = BadSampleError | SourceError | ValueError
Statistics = dict[str, dict[str, object]]
Measured = tuple[Statistics, dict[str, Any]]
"""Dict from field name to statistics, and dict from field name to error."""
_OF_THE_DATA = frozenset(
    {"least", "greatest", "template"}
)  # these describe the rows, but do not change the meaning of a number
_SHOWN = 8


def measure(
    table: Table, training: SetRows, readers: Sequence[FieldReader]
) -> tuple[dict[str, dict[str, object]], dict[str, Problem]]:
    """Compute the statistics of all fields in one pass over the training rows. Return two dicts by field name: the
    statistics, and the error of each field that failed."""
    tallies = {reader.name: tally for reader in readers if (tally := reader.field.tally(reader.columns)) is not None}
    counted = [reader for reader in readers if reader.name in tallies and tallies[reader.name].needs_rows]
    problems: dict[str, Problem] = {}
    for start, numbers in training.chunks(chunk_rows(counted)) if counted else ():
        try:
            read = table.read(column_names(counted), numbers)
        except SourceError as error:
            return {reader.name: {} for reader in readers}, {reader.name: error for reader in counted}
        for reader in counted:
            if reader.name in problems:
                continue
            try:
                tallies[reader.name].add([read[column.name] for column in reader.columns])
            except BadValueError as error:
                row = int(training.at(np.asarray([start + error.row]))[0])
                problems[reader.name] = BadSampleError(reader, row, error)
            except ValueError as error:
                problems[reader.name] = error
    statistics: dict[str, dict[str, object]] = {reader.name: {} for reader in readers}
    for name in tallies.keys() - problems.keys():
        try:
            statistics[name] = tallies[name].result()
        except ValueError as error:
            problems[name] = error
    return statistics, problems


@dataclass(frozen=True, slots=True)
class StatisticsCache:
    """Cache on disk of the statistics of some rows of `table`. `cut`: description of how these rows are chosen; it is a
    part of the cache key."""

    table: Table
    cut: tuple[object, ...]

    def statistics(
        self, readers: Sequence[FieldReader], measure: Callable[[], Measured], *, may_keep: bool
    ) -> Measured:
        """Return the statistics of the fields of `readers`, and an error for each field that has none. They come from
        the cache or, if it does not have them, from `measure`, whose result is stored if it has no errors. `may_keep`:
        False means that the cache is neither read nor written."""
        path = self._path("statistics", readers) if may_keep else None
        kept: Statistics | None = load(path)
        if kept is not None:
            return kept, {}
        found, problems = measure()
        if not problems:
            save(path, found)
        return found, problems

    def check_once(self, readers: Sequence[FieldReader], look: Callable[[], None]) -> None:
        """Call `look`, which checks the values of the fields of `readers`, unless the cache shows that an earlier check
        of the same values succeeded."""
        path = self._path("looked", readers)
        if load(path) is None:
            look()
            save(path, True)

    def _path(self, kind: str, readers: Sequence[FieldReader]) -> str | None:
        if self.table.fingerprint is None or not all(reader.field.keys_tell_all for reader in readers):
            return None
        fields = [
            (reader.name, reader.field.as_data(), [list(column) for column in reader.columns], dict(reader.statistics))
            for reader in readers
        ]
        return cache_path("rows", kind, self.table.fingerprint, self.cut, fields)


class Inherited(NamedTuple):
    """Field of an earlier run whose statistics are reused. `origin`: the run, for messages (`runs/x step 40`). `span`:
    where the recipe names the run."""

    spec: FieldSpec
    origin: str
    span: Span

    @property
    def statistics(self) -> dict[str, object]:
        return {key: value for key, value in self.spec.statistics.items() if key not in _OF_THE_DATA}

    def is_alike(self, field: Field) -> bool:
        """Return whether the statistics of the earlier run can be used for `field`: it has some, and the keys of the
        field have not changed since."""
        return bool(self.statistics) and self.spec.component == field.as_data()


def origin_of(inherited: Inherited | None) -> str:
    """Return the name of the earlier run that the statistics of a field come from; "" if they are computed from the
    training rows."""
    return inherited.origin if inherited is not None and inherited.statistics else ""


def measure_missing(
    table: Table, training: SetRows, readers: Sequence[FieldReader], inherited: Mapping[str, Inherited]
) -> tuple[dict[str, dict[str, object]], dict[str, Problem]]:
    """Return the statistics of each field, and the error of each field that failed, by field name. A field in
    `inherited` keeps its statistics of an earlier run. It is measured only if it has none, or if its keys have changed
    since that run."""
    taken = {name: each.statistics for name, each in inherited.items()}
    asked = [
        reader for reader in readers if reader.name not in taken or not inherited[reader.name].is_alike(reader.field)
    ]
    statistics, problems = measure(table, training, asked)
    return {reader.name: statistics.get(reader.name, {}) | taken.get(reader.name, {}) for reader in readers}, problems


def find_misreading(reader: FieldReader, inherited: Inherited, span: Span) -> list[Diagnostic]:
    """Return [diagnostic] if a field does not have the meaning that it had in the earlier run whose statistics and
    class numbers it uses; otherwise []. `span`: the place in the recipe that names the field's columns."""
    looks = (_other_keys, _other_columns, _other_size, _other_classes, _other_meaning)
    found = next((found for look in looks if (found := look(reader, inherited)) is not None), None)
    return [] if found is None else [field_of_another_run(span, reader.name, found, inherited.origin, inherited.span)]


def _other_keys(reader: FieldReader, inherited: Inherited) -> str | None:
    here = reader.field.as_data()
    for key in ("type", *reader.field.meaning):
        before, now = inherited.spec.component.get(key), here.get(key)
        if before != now:
            return f"`{key}` is {_format_value(now)} here, but was {_format_value(before)}"
    return None


def _other_columns(reader: FieldReader, inherited: Inherited) -> str | None:
    now, before = tuple(column.name for column in reader.columns), inherited.spec.columns
    if not before or now == before:
        return None
    if len(now) != len(before):
        counts = f"it has {format_count(len(now), 'column')} here ({_several(now)}), and had {len(before)}"
        return f"{counts} ({_several(before)})"
    if set(now) == set(before):
        return f"its columns are {_several(now)} here, and were {_several(before)}: another order"
    if any(
        map(is_glob, reader.field.wanted)
    ):  # a name without a glob was written by the user, who knows that it is new
        return f"its columns are {_several(now)} here, and were {_several(before)}"
    return None


def _other_size(reader: FieldReader, inherited: Inherited) -> str | None:
    """Return a message if a row of the field has more or fewer values than in the earlier run, else None. This can
    happen with the same columns, because a column may contain arrays."""
    means = inherited.statistics.get("subtract")
    if isinstance(means, list) and len(means) != reader.row.num_elements:
        return f"a row of it has {format_count(reader.row.num_elements, 'value')} here, and had {len(means)}"
    return None


def _other_classes(reader: FieldReader, inherited: Inherited) -> str | None:
    """Return a message if the class numbers of the field no longer mean the same as in the earlier run, else None. Two
    changes are found: a vocabulary where there was none, and another number of classes."""
    before, now = inherited.spec.tensor.num_values, reader.sample.num_values
    if "vocabulary" in reader.statistics and "vocabulary" not in inherited.statistics:
        return "its values are listed words or numbers here, but were class numbers"
    if before is not None and now is not None and before != now:
        return f"it has {format_count(now, 'class')} here, and had {before}"
    return None


def _other_meaning(reader: FieldReader, inherited: Inherited) -> str | None:
    return reader.field.misreads(inherited.statistics)


def unknown_value(error: BadSampleError, table: Table, inherited: Inherited | None, made: Span) -> Diagnostic | None:
    """Return the diagnostic if `error` is about a value that the vocabulary of an earlier run (`inherited`) lacks;
    otherwise None. `made`: where the recipe names the column, for the diagnostic."""
    vocabularies = {} if inherited is None else inherited.statistics
    if inherited is None or error.cause.problem != "outside" or "vocabulary" not in vocabularies:
        return None
    found = vocabularies["vocabulary"]
    position = [column.name for column in error.reader.columns].index(error.cause.column)
    vocabulary = found[position] if isinstance(found, list) else None
    if vocabulary is None:
        return None
    value = str(error.cause).split(" is ", 1)[1].split(",", 1)[0]
    known = f"{inherited.origin} has only {_several([str(each) for each in vocabulary])}"
    related = (Related(inherited.span, f"class numbers come from {inherited.origin}"),)
    column = error.cause.column
    return value_unknown_to_run(made, error.reader.name, column, value, known, table.place(error.row), related)


def _several(names: Sequence[str]) -> str:
    more = f", ... ({len(names)} in all)" if len(names) > _SHOWN else ""
    return ", ".join(f"`{name}`" for name in names[:_SHOWN]) + more


def _format_value(value: object) -> str:
    return "not set" if value is None else f"`{value}`"
