"""Fixes found by trying: for a diagnostic without a fix, a small edit after which lint no longer reports it.

`recipe/hints/edits.py` proposes edits. Each edited text is linted without the data; the best ones are linted again with
all requested checks. These fixes are not marked as safe, because the user may have meant another edit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from declarative_train.app.api.compiling import AS_WRITTEN, STATIC, Linted, Overrides, lint_recipe
from declarative_train.core.diagnostics.diagnostic import Diagnostic, Fix, Severity
from declarative_train.core.diagnostics.lines import Lines
from declarative_train.recipe.hints.edits import apply, propose

MOST_DIAGNOSTICS = 4  # diagnostics for which edits are tried; usually one mistake causes most of them
MOST_EDITS = 80  # edits that are tried for a diagnostic
MOST_FULL = 4  # edits that are also linted with the data and the graph

Lint = Callable[[Mapping[str, str]], Iterable[Diagnostic]]  # edited texts by path -> diagnostics
_Key = tuple[str, str]


def lint_and_try(
    path: str,
    overrides: Overrides = AS_WRITTEN,
    *,
    texts: Mapping[str, str] | None = None,
    static: bool = False,
    plugins: bool = False,
) -> Linted:
    """Lint a recipe as `lint_recipe` does, with the same arguments, and try edits for diagnostics without a fix.
    Return the diagnostics, some with fixes found by trying. This takes several times as long as linting alone."""

    def lint(edited: Mapping[str, str], *, static: bool) -> Linted:
        changed = {**(texts or {}), **edited}
        return lint_recipe(path, overrides, texts=changed, static=static, plugins=plugins)

    def find(edited: Mapping[str, str], *, static: bool) -> list[Diagnostic]:
        return lint(edited, static=static).diagnostics

    linted = lint({}, static=static)
    full = None if static else partial(find, static=False)
    found = with_tried_fixes(linted.diagnostics, linted.texts, partial(find, static=True), full)
    return Linted(found, linted.texts)


def with_tried_fixes(
    diagnostics: Iterable[Diagnostic],
    texts: Mapping[str, str],
    static: Lint,
    full: Lint | None,
    asked: Collection[Diagnostic] | None = None,
) -> list[Diagnostic]:
    """Return the diagnostics, some of them with a fix that was found by trying edits.

    `static`: function that lints edited texts without the data. `full`: function that lints them with all checks, or
    None to use only `static`. `asked`: the diagnostics for which fixes are searched, at most MOST_DIAGNOSTICS of them;
    None: the errors, or the warnings if there is no error.
    """
    found = list(diagnostics)
    worst = [each for each in found if each.is_error] or [each for each in found if each.severity is Severity.WARNING]
    worst = worst if asked is None else [each for each in found if each in asked]
    gone = {_key(each) for each in found if each.fixes}
    result, tried = {}, 0
    for each in worst:
        if tried == MOST_DIAGNOSTICS or _key(each) in gone or each.span.path not in texts or each.span.in_option:
            continue
        if full is None and not is_static(each):
            continue
        tried += 1
        best = _find(each, found, texts, static, full)
        if best is not None:
            fixes, cured = best
            gone |= cured
            result[each] = each._replace(fixes=fixes)
    return [result.get(each, each) for each in found]


def _find(
    wrong: Diagnostic, before: list[Diagnostic], texts: Mapping[str, str], static: Lint, full: Lint | None
) -> tuple[tuple[Fix, ...], set[_Key]] | None:
    """Try edits that may correct the diagnostic `wrong`. Return the fixes of the best edit and the keys of the
    diagnostics that it removes, or None if no edit helps. `before`: all diagnostics of the unedited texts. `static`:
    function that lints edited texts without the data. `full`: function that lints them with all checks, or None."""
    path, text = wrong.span.path, texts[wrong.span.path]
    seen, ranked = {text}, list[tuple[bool, int, int, str, tuple[Fix, ...]]]()
    lines = Lines(path, text)
    for proposal in propose(wrong, text):
        edited = apply(text, proposal)
        if edited is None or edited in seen:
            continue
        seen.add(edited)
        if len(seen) > MOST_EDITS:
            break
        left = list(static({path: edited}))
        if _helps(wrong, before, left):
            fixes = tuple(Fix(lines.span(start, end), new, safe=False) for start, end, new in proposal)
            is_removal = len(proposal) == 1 and not proposal[0][2].strip() and wrong.code != "Y003"
            ranked.append((is_removal, len(left), len(ranked), edited, fixes))
    ranked.sort()
    for *_, edited, fixes in ranked[: MOST_FULL if full is not None else 1]:
        left = list((full or static)({path: edited}))
        if _helps(wrong, before, left):
            return fixes, {_key(each) for each in before} - {_key(each) for each in left}
    if ranked and is_static(wrong):  # the full check failed only because it now reaches other mistakes
        return ranked[0][-1], {_key(wrong)}
    return None


def is_static(diagnostic: Diagnostic) -> bool:
    """Return whether `dtrain lint --static`, which uses neither torch nor the data, can find the diagnostic."""
    return diagnostic.code.startswith(STATIC)


def _helps(wrong: Diagnostic, before: list[Diagnostic], left: list[Diagnostic]) -> bool:
    """Return whether an edit removes the diagnostic `wrong` and causes no new ones. `before`, `left`: all diagnostics
    before and after the edit. Two kinds of new diagnostics are allowed:

    - all but YAML errors, if `wrong` is a YAML error, because the recipe could not be checked before
    - missing keys (S002), if `wrong` is a value of the wrong type (S003), because a mapping may be the right value
    """
    old, new = Counter(map(_key, before)), Counter(map(_key, left))
    if new[_key(wrong)] >= old[_key(wrong)]:
        return False
    if wrong.code.startswith("Y"):
        return not any(code.startswith("Y") for code, _ in new - old)
    is_shape = wrong.code == "S003"  # the right value may be a mapping
    return all(code == "S002" and is_shape for code, _ in new - old)


def _key(diagnostic: Diagnostic) -> _Key:
    return diagnostic.code, diagnostic.message
