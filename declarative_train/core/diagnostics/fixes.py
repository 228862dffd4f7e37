"""Application of fixes: make the edits of diagnostics in the text of recipes, and show the difference. All other bytes
of the text are kept.

The edits of one diagnostic are made together or not at all. If edits overlap, only the first one in the text is made.
The others can be made after the edited text was checked again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from declarative_train.core.diagnostics.diagnostic import Diagnostic, Fix
from declarative_train.core.diagnostics.lines import Lines

_BARE = re.compile(r"[A-Za-z_][\w./-]*")  # YAML reads this as text without quotes, except the words below
_WORDS = frozenset({"true", "false", "null"})
_Key = tuple[str, str, int, str]  # identity of a diagnostic before and after an edit
MOST_PASSES = 100  # a fix may uncover the next mistake


@dataclass(frozen=True, slots=True)
class FixResult:
    """Result of fixes. `texts`: the new text of each edited file, by path. `fixed`: the diagnostics whose edits were
    made."""

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
        """Return whether this edit and `other` cannot both be made: they overlap, or one inserts text at an end of the
        other, so that the result depends on their order. Two equal edits do not conflict."""
        if self == other:
            return False
        if self.start == self.end or other.start == other.end:
            return self.start <= other.end and other.start <= self.end
        return self.start < other.end and other.start < self.end


def locate_fixes(diagnostics: Iterable[Diagnostic], texts: Mapping[str, str]) -> list[Diagnostic]:
    """Return the diagnostics, with the span of each fix narrowed to the word that the fix replaces (`Fix.replaces`). A
    diagnostic loses all its fixes if such a word is not in the span, or if the new word cannot be written in its place.
    `texts`: the text of each file by path."""
    lines = {path: Lines(path, text) for path, text in texts.items()}
    return [_locate_fixes_of(each, lines) if any(fix.replaces for fix in each.fixes) else each for each in diagnostics]


def _locate_fixes_of(diagnostic: Diagnostic, lines: Mapping[str, Lines]) -> Diagnostic:
    found = [fix if fix.replaces is None else _locate_word(fix, lines.get(fix.span.path)) for fix in diagnostic.fixes]
    return diagnostic._replace(fixes=() if None in found else tuple(fix for fix in found if fix is not None))


def _locate_word(fix: Fix, lines: Lines | None) -> Fix | None:
    word, new = fix.replaces or "", fix.replacement
    if lines is None or fix.span.line != fix.span.end_line:
        return None
    edit = _edit(fix, lines)
    typed = lines.text[edit.start : edit.end]
    if typed[:1] in ('"', "'"):
        quotable = not any(character in new for character in "\"'\\") and new.isprintable()
        inside = fix.span.within(1, len(word))
        return fix._replace(span=inside) if typed[1:-1] == word and typed[-1] == typed[0] and quotable else None
    if typed == word:
        return fix if _BARE.fullmatch(new) and new not in _WORDS else None
    if typed.startswith(f"{word}."):  # a reference to an output or a copy
        return fix._replace(span=fix.span.within(0, len(word)))
    return None


def apply_fixes(diagnostics: Iterable[Diagnostic], texts: Mapping[str, str], *, unsafe: bool = False) -> FixResult:
    """Apply the safe fixes to the texts, and return the edited texts. `unsafe`: apply the unsafe fixes too.

    `texts`: a dict from path to text, with the line breaks of the file. A fix for another path is not applied."""
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
    return FixResult({path: _apply_edits(texts[path], edits) for path, edits in made.items()}, tuple(fixed))


def fix_until_stable(
    diagnostics: Iterable[Diagnostic],
    texts: Mapping[str, str],
    lint: Callable[[Mapping[str, str]], list[Diagnostic]],
    *,
    unsafe: bool = False,
) -> FixResult:
    """Apply fixes and check the edited texts, until no fix is left. Return the edited texts and the fixed diagnostics.
    `lint`: function that checks texts (a dict from path to text) and returns diagnostics. `unsafe`: also apply fixes
    that are not safe.

    If a diagnostic remains after its edits, or the edits make YAML errors, they are undone. The last call of `lint` is
    for the returned texts."""
    texts, found, fixed = dict(texts), list(diagnostics), list[Diagnostic]()
    before, hopeless, alone = dict(texts), set[_Key](), False
    for _ in range(MOST_PASSES):
        wanted = [each for each in found if each.fixes and _key(each) not in hopeless]
        made = apply_fixes(wanted, texts, unsafe=unsafe)
        if alone and made.count:
            made = apply_fixes(made.fixed[:1], texts, unsafe=unsafe)
        if not made.count:
            break
        after = lint({**texts, **made.texts})
        if not _is_worse(made.fixed, found, after):
            texts, found = {**texts, **made.texts}, after
            fixed += made.fixed
            continue
        lint(texts)
        if made.count == 1:
            hopeless.add(_key(made.fixed[0]))
        alone = True
    return FixResult({path: text for path, text in texts.items() if text != before[path]}, tuple(fixed))


def _key(diagnostic: Diagnostic) -> _Key:
    return diagnostic.code, diagnostic.span.path, diagnostic.span.line, diagnostic.message


def _is_worse(fixed: Iterable[Diagnostic], before: Iterable[Diagnostic], after: Iterable[Diagnostic]) -> bool:
    """Return whether edits failed: a diagnostic in `fixed`, which they should remove, is still as frequent, or
    there are new YAML errors (codes Y). YAML errors do not count if `fixed` has one. `before`, `after`: all diagnostics
    before and after the edits."""
    old, new = Counter(map(_key, before)), Counter(map(_key, after))
    if any(new[_key(each)] >= old[_key(each)] for each in fixed):
        return True
    unreadable = [sum(n for key, n in each.items() if key[0].startswith("Y")) for each in (old, new)]
    return unreadable[1] > unreadable[0] and not any(each.code.startswith("Y") for each in fixed)


def unified_diff(path: str, before: str, after: str) -> str:
    """Return the difference between two texts in the format of `diff -u`. Lines keep their line breaks."""
    from difflib import unified_diff as changes  # imported here, because most lints do not need it

    lines = changes(_lines(before), _lines(after), fromfile=f"a/{path}", tofile=f"b/{path}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    r"""Return the lines of a text, split at `\n` only: `splitlines` also splits at form feeds and separators."""
    parts = text.split("\n")
    lines = [f"{part}\n" for part in parts[:-1]]
    return [*lines, parts[-1]] if parts[-1] else lines


def _may(fix: Fix, lines: Mapping[str, Lines], unsafe: bool) -> bool:
    return (fix.safe or unsafe) and fix.span.path in lines


def _edit(fix: Fix, lines: Lines) -> _Edit:
    span = fix.span
    start = lines.offset(span.line, span.column)
    return _Edit(start, max(lines.offset(span.end_line, span.end_column), start), fix.replacement)


def _apply_edits(text: str, edits: Iterable[_Edit]) -> str:
    for edit in sorted(edits, key=lambda each: (each.start, each.end), reverse=True):
        text = text[: edit.start] + edit.replacement + text[edit.end :]
    return text
