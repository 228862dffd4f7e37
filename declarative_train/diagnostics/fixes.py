"""Fixes -> edited texts, untouched to the byte elsewhere, and their difference.

The edits of one diagnostic are made together or not at all; of edits that overlap, the first in the text is made and
the others wait for the next pass over the edited text.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from declarative_train.diagnostics.diagnostic import Diagnostic, Fix
from declarative_train.diagnostics.lines import Lines


@dataclass(frozen=True, slots=True)
class Fixed:
    """`texts`: the edited texts only. `fixed`: the diagnostics whose edits were made."""

    texts: Mapping[str, str]
    fixed: tuple[Diagnostic, ...]

    @property
    def count(self) -> int:
        return len(self.fixed)


@dataclass(frozen=True, slots=True)
class _Edit:
    start: int
    end: int
    replacement: str

    def meets(self, other: _Edit) -> bool:
        """True when the order of the two edits would matter."""
        if self == other:
            return False
        if self.start == self.end or other.start == other.end:
            return self.start <= other.end and other.start <= self.end
        return self.start < other.end and other.start < self.end


def apply_fixes(diagnostics: Iterable[Diagnostic], texts: Mapping[str, str], *, unsafe: bool = False) -> Fixed:
    """Make the safe edits, or with `unsafe` all of them. `texts` are the sources by path, line breaks as in the file;
    an edit of a text that is not among them (an option, a file that was not read) is left out."""
    lines = {path: Lines(path, text) for path, text in texts.items() if not path.startswith("--")}
    made: dict[str, list[_Edit]] = {}
    fixed: list[Diagnostic] = []
    for diagnostic in sorted(diagnostics, key=lambda d: min((fix.span for fix in d.fixes), default=d.span)):
        if not diagnostic.fixes or not all(_may(fix, lines, unsafe) for fix in diagnostic.fixes):
            continue
        edits = [(fix.span.path, _edit(fix, lines[fix.span.path])) for fix in diagnostic.fixes]
        if any(edit.meets(other) for path, edit in edits for other in made.get(path, [])):
            continue
        for path, edit in edits:
            if edit not in made.setdefault(path, []):
                made[path].append(edit)
        fixed.append(diagnostic)
    return Fixed({path: _edited(texts[path], edits) for path, edits in made.items()}, tuple(fixed))


def unified_diff(path: str, before: str, after: str) -> str:
    """The change as `diff -u` shows it, lines with the breaks they have."""
    lines = difflib.unified_diff(_lines(before), _lines(after), fromfile=f"a/{path}", tofile=f"b/{path}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    """Cut at `\\n` only: `splitlines` cuts at form feeds and separators too."""
    parts = text.split("\n")
    lines = [f"{part}\n" for part in parts[:-1]]
    return [*lines, parts[-1]] if parts[-1] else lines


def _may(fix: Fix, lines: Mapping[str, Lines], unsafe: bool) -> bool:
    return (fix.safe or unsafe) and fix.span.path in lines


def _edit(fix: Fix, lines: Lines) -> _Edit:
    span = fix.span
    start = lines.offset(span.line, span.column)
    return _Edit(start, max(lines.offset(span.end_line, span.end_column), start), fix.replacement)


def _edited(text: str, edits: Iterable[_Edit]) -> str:
    for edit in sorted(edits, key=lambda each: (each.start, each.end), reverse=True):
        text = text[: edit.start] + edit.replacement + text[edit.end :]
    return text
