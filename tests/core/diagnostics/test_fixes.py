"""Edits: to the byte, together or not at all."""

from __future__ import annotations

import pytest

from declarative_train.core.diagnostics.diagnostic import Diagnostic, Fix, error
from declarative_train.core.diagnostics.fixes import apply_fixes, locate_fixes, unified_diff
from declarative_train.core.span import Span


def fix(line: int, column: int, length: int, replacement: str, *, safe: bool = True, path: str = "a.yaml") -> Fix:
    return Fix(Span(path, line, column, line, column + length), replacement, safe)


def mistake(*fixes: Fix) -> Diagnostic:
    return error("X001", fixes[0].span if fixes else Span("a.yaml", 1, 1, 1, 2), "m", fixes=fixes)


def edited(text: str, *diagnostics: Diagnostic, unsafe: bool = False) -> str:
    return apply_fixes(diagnostics, {"a.yaml": text}, unsafe=unsafe).texts.get("a.yaml", text)


def test_everything_else_stays_to_the_byte() -> None:
    text = "\ufeffa:   010  # said\r\nb: é\x0c\n\tc: 1\r\n"
    found = edited(text, mistake(fix(1, 6, 3, "10")), mistake(fix(2, 4, 1, "e")))
    assert found == "\ufeffa:   10  # said\r\nb: e\x0c\n\tc: 1\r\n"


def test_unsafe_edits_are_asked_for() -> None:
    diagnostic = mistake(fix(1, 1, 1, "b", safe=False))
    assert edited("a\n", diagnostic) == "a\n"
    assert edited("a\n", diagnostic, unsafe=True) == "b\n"
    half = mistake(fix(1, 1, 1, "b"), fix(1, 2, 1, "c", safe=False))
    assert edited("aa\n", half) == "aa\n"


def test_what_overlaps_waits_for_the_next_pass() -> None:
    first, second, third = mistake(fix(1, 1, 3, "X")), mistake(fix(1, 3, 2, "Y")), mistake(fix(1, 4, 2, "Z"))
    found = apply_fixes([third, second, first], {"a.yaml": "abcdefg\n"})
    assert found.texts == {"a.yaml": "XZfg\n"}
    assert found.fixed == (first, third)
    assert found.count == 2


def test_a_diagnostic_is_mended_whole_or_not_at_all() -> None:
    both = mistake(fix(1, 1, 1, "X"), fix(1, 5, 1, "Y"))
    blocker = mistake(fix(1, 1, 1, "Z"))
    assert edited("abcde\n", blocker, both) in ("Zbcde\n", "XbcdY\n")
    assert edited("abcde\n", both) == "XbcdY\n"


def test_the_same_edit_of_two_diagnostics_is_made_once() -> None:
    found = apply_fixes([mistake(fix(1, 1, 1, "X")), mistake(fix(1, 1, 1, "X"))], {"a.yaml": "a\n"})
    assert found.texts == {"a.yaml": "X\n"}
    assert found.count == 2


def test_insertions_at_one_place_do_not_mix() -> None:
    found = apply_fixes([mistake(fix(1, 2, 0, ",")), mistake(fix(1, 2, 0, ";"))], {"a.yaml": "ab\n"})
    assert found.count == 1


def test_several_files_and_what_is_no_file() -> None:
    diagnostic = mistake(fix(1, 1, 1, "X"), fix(1, 1, 1, "Y", path="b.yaml"))
    found = apply_fixes([diagnostic], {"a.yaml": "a\n", "b.yaml": "b\n"})
    assert found.texts == {"a.yaml": "X\n", "b.yaml": "Y\n"}
    assert apply_fixes([diagnostic], {"a.yaml": "a\n"}).texts == {}
    assert apply_fixes([mistake(fix(1, 7, 1, "X", path="--set a"))], {"--set a": "--set a"}).texts == {}
    assert apply_fixes([mistake()], {"a.yaml": "a\n"}).count == 0


def test_an_edit_over_lines() -> None:
    diagnostic = mistake(Fix(Span("a.yaml", 1, 2, 3, 2), "-", True))
    assert edited("ab\r\ncd\nef\n", diagnostic) == "a-f\n"


def test_a_difference() -> None:
    found = unified_diff("a.yaml", "a: 1\nb: 2\nc: 3", "a: 1\nb: 3\nc: 3")
    assert found == (
        "--- a/a.yaml\n+++ b/a.yaml\n@@ -1,3 +1,3 @@\n a: 1\n-b: 2\n+b: 3\n c: 3\n\\ No newline at end of file\n"
    )
    assert unified_diff("a.yaml", "a\n", "a\n") == ""
    assert "\r\n" in unified_diff("a.yaml", "a\r\n", "b\r\n")


@pytest.mark.parametrize(
    ("typed", "replacement", "after"),
    [
        ("liner", "linear", "linear"),
        ('"liner"', "linear", '"linear"'),
        ("'liner'", "linear", "'linear'"),
        ("liner.out", "linear", "linear.out"),  # a reference
        ("{{ kind }}", "linear", None),  # a template made the word
        ("*kind", "linear", None),
        ("linerx", "linear", None),
        ("liner", "a, b", None),  # needs quotes
        ("liner", "true", None),
        ("'liner'", "it's", None),
        ('"liner"', "a\\b", None),
        ("'", "linear", None),
    ],
)
def test_a_word_is_replaced_where_it_was_typed(typed: str, replacement: str, after: str | None) -> None:
    text = f"type: {typed}  # said\n"
    fix = Fix(Span("a.yaml", 1, 7, 1, 7 + len(typed)), replacement, True, "liner")
    [diagnostic] = locate_fixes([mistake(fix)], {"a.yaml": text})
    assert bool(diagnostic.fixes) == (after is not None)
    assert edited(text, diagnostic) == f"type: {typed if after is None else after}  # said\n"


def test_one_word_that_is_not_there_takes_all_edits_away() -> None:
    there, gone = Fix(Span("a.yaml", 1, 1, 1, 2), "x", True, "a"), Fix(Span("a.yaml", 1, 2, 1, 3), "x", True, "q")
    [diagnostic] = locate_fixes([mistake(there, gone)], {"a.yaml": "ab\n"})
    assert diagnostic.fixes == ()
    assert locate_fixes([mistake(gone)], {})[0].fixes == ()  # of a text that was not read
