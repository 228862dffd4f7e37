"""Statistics of an earlier run: a field takes means, fill values and class numbers from the run whose weights the
model starts from.

The weights were trained on numbers made with that run's statistics; new ones would change what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from declarative_train.components.data import Field, Table
from declarative_train.components.fields.columns import is_glob
from declarative_train.core.amounts import counted
from declarative_train.core.diagnostics.diagnostic import Diagnostic, Related
from declarative_train.core.span import Span
from declarative_train.data.checks.samples import field_of_another_run, value_unknown_to_run
from declarative_train.data.field_reader import FieldReader
from declarative_train.data.materialize import BadSampleError, Problem, measure
from declarative_train.data.rows import SetRows
from declarative_train.data.spec import FieldSpec

_OF_THE_DATA = frozenset(
    {"least", "greatest", "template"}
)  # what the rows hold, or are written by: a number is the same
_SHOWN = 8


class Inherited(NamedTuple):
    """Field of the run called `origin` (`runs/x step 40`); `span` is the place where the recipe names the run."""

    spec: FieldSpec
    origin: str
    span: Span

    @property
    def statistics(self) -> dict[str, object]:
        return {key: value for key, value in self.spec.statistics.items() if key not in _OF_THE_DATA}

    def is_alike(self, field: Field) -> bool:
        """Return whether the run has all statistics that the field needs."""
        return bool(self.statistics) and self.spec.component == field.as_data()


def origin_of(inherited: Inherited | None) -> str:
    """Return the run whose statistics a field has; "" if they are those of its own rows."""
    return inherited.origin if inherited is not None and inherited.statistics else ""


def measure_missing(
    table: Table, training: SetRows, parts: Sequence[FieldReader], inherited: Mapping[str, Inherited]
) -> tuple[dict[str, dict[str, object]], dict[str, Problem]]:
    """Return statistics as `measure` does: those of the run, and the missing ones from the training rows."""
    taken = {name: each.statistics for name, each in inherited.items()}
    asked = [part for part in parts if part.name not in taken or not inherited[part.name].is_alike(part.field)]
    statistics, problems = measure(table, training, asked)
    return {part.name: statistics.get(part.name, {}) | taken.get(part.name, {}) for part in parts}, problems


def misread(part: FieldReader, inherited: Inherited, span: Span) -> list[Diagnostic]:
    """Return why the run's statistics and classes would have another meaning here; `span` is the place of the
    columns.
    """
    looks = (_other_keys, _other_columns, _other_size, _other_classes, _other_meaning)
    found = next((found for look in looks if (found := look(part, inherited)) is not None), None)
    return [] if found is None else [field_of_another_run(span, part.name, found, inherited.origin, inherited.span)]


def _other_keys(part: FieldReader, inherited: Inherited) -> str | None:
    here = part.field.as_data()
    for key in ("type", *part.field.meaning):
        before, now = inherited.spec.component.get(key), here.get(key)
        if before != now:
            return f"`{key}` is {_format_value(now)} here, and was {_format_value(before)}"
    return None


def _other_columns(part: FieldReader, inherited: Inherited) -> str | None:
    now, before = tuple(column.name for column in part.columns), inherited.spec.columns
    if not before or now == before:
        return None
    if len(now) != len(before):
        counts = f"it has {counted(len(now), 'column')} here ({_several(now)}), and had {len(before)}"
        return f"{counts} ({_several(before)})"
    if set(now) == set(before):
        return f"its columns are {_several(now)} here, and were {_several(before)}: another order"
    if any(map(is_glob, part.field.wanted)):  # else the new name was typed, and is meant
        return f"its columns are {_several(now)} here, and were {_several(before)}"
    return None


def _other_size(part: FieldReader, inherited: Inherited) -> str | None:
    """Compare the number of values per row, for columns of arrays, or for a run that did not record its columns."""
    means = inherited.statistics.get("subtract")
    if isinstance(means, list) and len(means) != part.row.num_elements:
        return f"a row of it has {counted(part.row.num_elements, 'value')} here, and had {len(means)}"
    return None


def _other_classes(part: FieldReader, inherited: Inherited) -> str | None:
    """Compare the number of classes, if there is no vocabulary."""
    before, now = inherited.spec.tensor.num_values, part.sample.num_values
    if "vocabulary" in part.statistics and "vocabulary" not in inherited.statistics:
        return "its values are words or numbers out of a list here, and were class numbers"
    if before is not None and now is not None and before != now:
        return f"it has {counted(now, 'class')} here, and had {before}"
    return None


def _other_meaning(part: FieldReader, inherited: Inherited) -> str | None:
    return part.field.misreads(inherited.statistics)


def unknown_value(error: BadSampleError, table: Table, inherited: Inherited | None, made: Span) -> Diagnostic | None:
    """Return the diagnostic of a value that the run's vocabulary lacks; None if the error has another cause."""
    vocabularies = {} if inherited is None else inherited.statistics
    if inherited is None or error.cause.problem != "outside" or "vocabulary" not in vocabularies:
        return None
    found = vocabularies["vocabulary"]
    position = [column.name for column in error.part.columns].index(error.cause.column)
    vocabulary = found[position] if isinstance(found, list) else None
    if vocabulary is None:
        return None
    value = str(error.cause).split(" is ", 1)[1].split(",", 1)[0]
    known = f"{inherited.origin} knows {_several([str(each) for each in vocabulary])}"
    related = (Related(inherited.span, f"class numbers are those of {inherited.origin}"),)
    column = error.cause.column
    return value_unknown_to_run(made, error.part.name, column, value, known, table.place(error.row), related)


def _several(names: Sequence[str]) -> str:
    more = f", ... ({len(names)} in all)" if len(names) > _SHOWN else ""
    return ", ".join(f"`{name}`" for name in names[:_SHOWN]) + more


def _format_value(value: object) -> str:
    return "not set" if value is None else f"`{value}`"
