"""Renderer of diagnostics: it selects codes (`--select`, `--ignore`), sorts by position, and writes one of several
formats."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from declarative_train.core.diagnostics import text
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.diagnostics.lines import Lines
from declarative_train.core.secrets import masked
from declarative_train.core.span import Span

if TYPE_CHECKING:
    from declarative_train.core.diagnostics.rules import Rule


_READING = ("Y", "M", "T")  # codes of errors after which there is no value that later checks could judge


def arrange(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Return the diagnostics sorted by position and code, without duplicates and without mere consequences of others
    (`without_echoes`)."""
    unique = {(d.code, d.span, d.message): d for d in diagnostics}
    kept = without_echoes(unique.values())
    return sorted(kept, key=lambda d: (d.span, d.code, d.message))


def without_echoes(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Return the diagnostics without those that only follow from an error in reading a value. Such a diagnostic is on
    one line, and its span contains the span of the value."""
    everything = list(diagnostics)
    broken: dict[str, list[Span]] = {}
    for diagnostic in everything:
        if diagnostic.is_error and diagnostic.code.startswith(_READING):
            broken.setdefault(diagnostic.span.path, []).append(diagnostic.span)
    return [d for d in everything if d.code.startswith(_READING) or not _is_echo(d, broken.get(d.span.path, []))]


def _is_echo(diagnostic: Diagnostic, broken: Iterable[Span]) -> bool:
    """Return whether a diagnostic only follows from an unreadable value: its span is on one line and contains the span
    of such a value. `broken`: the spans of the unreadable values."""
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
    """Choice of the diagnostics to show, by prefixes of their codes. `selected`: prefixes to show; empty: all.
    `ignored`: prefixes to hide. If a code has prefixes in both, the longer prefix decides; if both are equally long,
    the code is hidden."""

    selected: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    @classmethod
    def parse(cls, *, select: str = "", ignore: str = "") -> Selection:
        """Read the texts of the options `--select` and `--ignore`: codes or prefixes, separated by commas or blanks."""
        return cls(_prefixes(select), _prefixes(ignore))

    def takes(self, code: str) -> bool:
        wanted = max((len(prefix) for prefix in self.selected if code.startswith(prefix)), default=-1)
        unwanted = max((len(prefix) for prefix in self.ignored if code.startswith(prefix)), default=-1)
        return unwanted < wanted if self.selected else unwanted < 0

    def unknown(self, codes: Iterable[str]) -> tuple[str, ...]:
        """Return the selected or ignored prefixes that match none of the existing `codes`."""
        known = list(codes)
        given = dict.fromkeys((*self.selected, *self.ignored))
        return tuple(prefix for prefix in given if not any(code.startswith(prefix) for code in known))


def _prefixes(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.upper() for word in re.split(r"[,\s]+", text) if word))


Format = Literal["full", "concise", "json", "github", "sarif", "junit"]
FORMATS: tuple[str, ...] = get_args(Format)

_MAX_BYTES = 5_000_000


def render(
    diagnostics: Iterable[Diagnostic],
    texts: Mapping[str, str],
    *,
    format: Format = "full",
    color: bool = False,
    rules: Mapping[str, Rule] | None = None,
) -> str:
    """Return the diagnostics, sorted by position, as text in `format`.

    `texts`: a dict from path, as in spans, to source text. Other files are read from the disk. The source text of an
    option is the option itself (`--set a=1`). `rules`: manual pages of the codes, for SARIF."""
    arranged = [_mask_diagnostic(diagnostic) for diagnostic in arrange(diagnostics)]
    if format == "full":
        return text.full(arranged, _Sources(texts), color=color)
    if format == "concise":
        return text.concise(arranged)
    from declarative_train.core.diagnostics import formats

    if format == "sarif":
        return formats.sarif(arranged, rules or {})
    if format == "json":
        return formats.json_text(arranged)
    if format == "github":
        return formats.github(arranged)
    if format == "junit":
        return formats.junit(arranged, texts)
    raise ValueError(f"there is no format `{format}`: use one of {', '.join(FORMATS)}")


def _mask_diagnostic(diagnostic: Diagnostic) -> Diagnostic:
    """Return the diagnostic with secrets masked in its message, hint and related messages."""
    hint = None if diagnostic.help is None else masked(diagnostic.help)
    related = tuple(each._replace(message=masked(each.message)) for each in diagnostic.related)
    return diagnostic._replace(message=masked(diagnostic.message), help=hint, related=related)


class _Sources(Mapping[str, Lines]):
    """Source texts by path, each split into lines when it is first used."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self._lines: dict[str, Lines] = {}

    def __getitem__(self, path: str) -> Lines:
        if path not in self._lines:
            self._lines[path] = Lines(path, self._text(path))
        return self._lines[path]

    def _text(self, path: str) -> str:
        if path in self._texts:
            return self._texts[path]
        if path.startswith("--"):
            return path
        try:
            if not os.path.isfile(path) or os.path.getsize(path) > _MAX_BYTES:
                raise KeyError(path)
            with open(path, encoding="utf-8", errors="replace", newline="") as file:
                return file.read()
        except (OSError, ValueError):
            raise KeyError(path) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)
