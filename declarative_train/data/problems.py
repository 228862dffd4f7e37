"""Errors of sources and values -> the diagnostic of the rule that they break."""

from __future__ import annotations

from collections.abc import Callable

from declarative_train.components.component import SourceError
from declarative_train.data.checks.files import (
    different_columns,
    empty_glob,
    missing_file,
    source_without_file_system,
    unreadable_source,
)
from declarative_train.data.checks.values import missing_value, not_a_whole_number, value_out_of_range
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
