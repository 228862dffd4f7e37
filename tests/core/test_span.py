"""Places in a text."""

from __future__ import annotations

from declarative_train.core.span import Span


def test_shown_as_editors_write_it() -> None:
    assert str(Span("a/b.yaml", 3, 7, 4, 2)) == "a/b.yaml:3:7"


def test_spans_sort_by_file_and_place() -> None:
    later, earlier, other = Span("a", 3, 1, 3, 2), Span("a", 2, 9, 9, 9), Span("b", 1, 1, 1, 2)
    assert sorted([other, later, earlier]) == [earlier, later, other]


def test_a_part_of_a_line() -> None:
    assert Span("a", 3, 7, 3, 20).within(4, 2) == Span("a", 3, 11, 3, 13)
    assert Span("a", 3, 7, 3, 20).within(0) == Span("a", 3, 7, 3, 8)
