"""Offsets to lines and columns, and back."""

from __future__ import annotations

import pytest

from declarative_train.core.diagnostics.lines import Lines
from declarative_train.core.span import Span


def test_places() -> None:
    lines = Lines("a", "ab\ncd\r\ne\rf")
    assert [lines.place(offset) for offset in (0, 2, 3, 5, 7, 8, 9, 10)] == [
        (1, 1),
        (1, 3),
        (2, 1),
        (2, 3),
        (3, 1),
        (3, 2),
        (4, 1),
        (4, 2),
    ]
    assert [lines.line(number) for number in range(6)] == ["", "ab", "cd", "e", "f", ""]
    assert len(lines) == 4


@pytest.mark.parametrize("text", ["ab\ncd\r\ne\rf\n", "\ufeffab\ncd", "", "\u2028x\n\x0cy"])
def test_offset_is_the_inverse_of_place(text: str) -> None:
    lines = Lines("a", text)
    begin = int(text.startswith("\ufeff"))
    for offset in range(begin, len(text) + 1):
        if text[offset - 1 : offset] != "\r" or text[offset : offset + 1] != "\n":
            assert lines.offset(*lines.place(offset)) == offset


def test_places_outside_become_the_nearest() -> None:
    lines = Lines("a", "ab\ncd")
    assert lines.offset(0, 5) == 0
    assert lines.offset(1, 99) == 2
    assert lines.offset(9, 1) == 5


def test_a_byte_order_mark_stands_in_no_column() -> None:
    lines = Lines("a", "\ufeffab\nc")
    assert lines.span(1, 3) == Span("a", 1, 1, 1, 3)
    assert lines.place(0) == (1, 1)
    assert lines.line(1) == "ab"
    assert lines.offset(1, 1) == 1


def test_only_line_feeds_and_carriage_returns_end_lines() -> None:
    assert len(Lines("a", "x\x0cy\x85z\u2028w\x1c")) == 1
