"""Comments that ignore, and what is wrong with them."""

from __future__ import annotations

import pytest

from declarative_train.core.diagnostics.diagnostic import Diagnostic, error, unverified, warning
from declarative_train.core.diagnostics.fixes import apply_fixes
from declarative_train.core.diagnostics.suppress import suppress
from declarative_train.core.span import Span


def at(line: int, column: int = 1) -> Span:
    return Span("a.yaml", line, column, line, column + 1)


def left(text: str, *diagnostics: Diagnostic) -> list[tuple[str, int]]:
    return [(d.code, d.span.line) for d in suppress(diagnostics, {"a.yaml": text})]


def mended(text: str, *diagnostics: Diagnostic) -> str:
    found = apply_fixes(suppress(diagnostics, {"a.yaml": text}), {"a.yaml": text})
    return found.texts.get("a.yaml", text)


H1, H2 = warning("H001", at(1), "m"), warning("H002", at(2), "m")


def test_a_comment_speaks_for_its_line() -> None:
    text = "a: 1  # dtrain: ignore[H001]\nb: 2\n"
    assert left(text, H1, H2) == [("H002", 2)]
    assert left(text, unverified("H001", at(1), "m")) == []


def test_a_comment_of_its_own_speaks_for_the_next_line() -> None:
    assert left("# dtrain: ignore[H002]\n\n# more\nb: 2\n", warning("H002", at(4), "m")) == []
    assert left("a: 1\n# dtrain: ignore[H002]\n", H2) == []


def test_a_file_comment_speaks_for_the_file() -> None:
    text = "# dtrain: ignore-file[H001, H002]\na: 1\n"
    assert left(text, warning("H001", at(2), "m"), H2) == []


def test_several_codes_and_loose_writing() -> None:
    assert left("a: 1 #dtrain:ignore[ H001,h003 ] because\n", H1, warning("H003", at(1), "m")) == []


@pytest.mark.parametrize(
    "text", ["a: '# dtrain: ignore[H001]'\n", 'a: "x # dtrain: ignore[H001]"\n', "a: x# dtrain: ignore[H001]\n"]
)
def test_what_is_no_comment_hides_nothing(text: str) -> None:
    assert left(text, H1) == [("H001", 1)]


def test_another_file_is_another_file() -> None:
    assert left("a: 1  # dtrain: ignore[H001]\n", warning("H001", Span("b.yaml", 1, 1, 1, 2), "m")) == [
        ("H001", 1),
        ("I001", 1),
    ]


def test_an_error_cannot_be_ignored() -> None:
    found = suppress([error("S001", at(1), "m")], {"a.yaml": "a: 1  # dtrain: ignore[S001]\n"})
    assert [(d.code, d.is_error) for d in found] == [("S001", True), ("I002", False)]
    assert found[1].related[0].span == at(1)
    assert found[1].span.column == 24


def test_unused_comments_are_said_and_taken_out() -> None:
    text = "a: 1   # dtrain: ignore[H001]   \nb: 2\n"
    (diagnostic,) = suppress([], {"a.yaml": text})
    assert (diagnostic.code, diagnostic.span.column, diagnostic.span.end_column) == ("I001", 25, 29)
    assert mended(text) == "a: 1\nb: 2\n"
    assert mended("a: 1  # dtrain: ignore[H001] since we know\n") == "a: 1  # since we know\n"
    assert mended("a: 1  # dtrain: ignore[H001, H003]\n", H1) == "a: 1  # dtrain: ignore[H001]\n"
    assert mended("a: 1  # dtrain: ignore[H003,H004]\n") == "a: 1\n"
    assert mended("# dtrain: ignore-file[H003]\na: 1\n") == "\na: 1\n"


def test_only_checks_that_ran_make_a_comment_unused() -> None:
    texts = {"a.yaml": "a: 1  # dtrain: ignore[G001, H001]\n"}
    assert [d.message for d in suppress([], texts, checked=("H", "S"))] == [
        "there is no diagnostic `H001` here to hide"
    ]
    assert [d.code for d in suppress([error("S001", at(1), "m")], texts)] == ["S001"]


@pytest.mark.parametrize(
    "comment", ["# dtrain: ignore", "# dtrain: ignore[]", "# dtrain: ignore-file", "# dtrain: ignore H001"]
)
def test_a_comment_without_a_code(comment: str) -> None:
    assert left(f"a: 1  {comment}\n", H1) == [("H001", 1), ("I003", 1)]


def test_options_have_no_comments() -> None:
    assert suppress([], {"--set a=1 # dtrain: ignore[H001]": "--set a=1 # dtrain: ignore[H001]"}) == []
