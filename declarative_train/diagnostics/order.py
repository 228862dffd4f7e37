"""Which diagnostics are shown (`--select`, `--ignore`), in the order of a reader: by place, each once, without echoes.

An echo is an error that is only there because an earlier stage of reading found one at the same place: a value that
could not be read is of no type either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

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


class Selection(NamedTuple):
    """Prefixes; the longest one that fits a code decides, and `ignore` wins when both are equally long.

    Nothing selected means everything.
    """

    selected: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    @classmethod
    def parse(cls, *, select: str = "", ignore: str = "") -> Selection:
        """From the words of the options: codes or prefixes, with commas or blanks between."""
        return cls(_prefixes(select), _prefixes(ignore))

    def takes(self, code: str) -> bool:
        wanted = max((len(prefix) for prefix in self.selected if code.startswith(prefix)), default=-1)
        unwanted = max((len(prefix) for prefix in self.ignored if code.startswith(prefix)), default=-1)
        return unwanted < wanted if self.selected else unwanted < 0

    def unknown(self, codes: Iterable[str]) -> tuple[str, ...]:
        """The prefixes that fit none of `codes`: misspelt ones."""
        known = list(codes)
        given = dict.fromkeys((*self.selected, *self.ignored))
        return tuple(prefix for prefix in given if not any(code.startswith(prefix) for code in known))


def _prefixes(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.upper() for word in re.split(r"[,\s]+", text) if word))
