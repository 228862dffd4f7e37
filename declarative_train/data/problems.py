"""Errors of sources and values -> the diagnostic of the rule that they break."""

from __future__ import annotations

from collections.abc import Callable

from declarative_train.components.component import SourceError
from declarative_train.data.checks.different_columns import different_columns
from declarative_train.data.checks.empty_glob import empty_glob
from declarative_train.data.checks.missing_file import missing_file
from declarative_train.data.checks.missing_value import missing_value
from declarative_train.data.checks.not_a_whole_number import not_a_whole_number
from declarative_train.data.checks.source_without_file_system import source_without_file_system
from declarative_train.data.checks.unreadable_source import unreadable_source
from declarative_train.data.checks.value_out_of_range import value_out_of_range
from declarative_train.data.prepare import BadSampleError
from declarative_train.diagnostics.diagnostic import Diagnostic, Related
from declarative_train.terms.span import Span

_OF_SOURCES: dict[str, Callable[[Span, SourceError], Diagnostic]] = {
    "different_columns": different_columns,
    "no_file_system": source_without_file_system,
    "no_match": empty_glob,
    "not_found": missing_file,
    "unreadable": unreadable_source,
}


def source_problem(span: Span, error: SourceError) -> Diagnostic:
    return _OF_SOURCES[error.problem](span, error)


def bad_sample(span: Span, error: BadSampleError, place: str, made: tuple[Related, ...] = ()) -> Diagnostic:
    """`place`: where the row stands; `made`: the column, where `span` is another key."""
    name, message, way_out = error.part.name, str(error.cause), error.cause.help
    if error.cause.problem == "missing":
        return missing_value(span, name, message, place, way_out)
    if error.cause.problem == "outside":
        return value_out_of_range(span, name, message, place, way_out, made)
    return not_a_whole_number(span, name, message, place, made)
