"""Diagnostics in the order of a reader: by place, each once, without echoes.

An echo is an error that is only there because an earlier stage of reading found one at the same place: a value that
could not be read is of no type either.
"""

from __future__ import annotations

from collections.abc import Iterable

from declarative_train.diagnostics.diagnostic import Diagnostic
from declarative_train.terms.span import Span

_READING = ("Y", "M", "T")  # what these find leaves nothing at its place for later stages to judge


def arrange(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Sorted by place and code; the same text at the same place once, echoes left out."""
    unique = {(d.code, d.span, d.message): d for d in diagnostics}
    kept = without_echoes(unique.values())
    return sorted(kept, key=lambda d: (d.span, d.code, d.message))


def without_echoes(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    everything = list(diagnostics)
    broken: dict[str, list[Span]] = {}
    for diagnostic in everything:
        if diagnostic.is_error and diagnostic.code.startswith(_READING):
            broken.setdefault(diagnostic.span.path, []).append(diagnostic.span)
    return [d for d in everything if d.code.startswith(_READING) or not _is_echo(d, broken.get(d.span.path, []))]


def _is_echo(diagnostic: Diagnostic, broken: Iterable[Span]) -> bool:
    """True when its place is that of a broken value, or is a value of one line with a broken part inside."""
    span = diagnostic.span
    if span.line != span.end_line:
        return False
    return any(
        place.line == span.line
        and span.column <= place.column
        and (place.end_line, place.end_column) <= (span.line, span.end_column)
        for place in broken
    )
