"""YAML 1.2 core values, and where the characters of a text stand."""

from __future__ import annotations

import math

import pytest

from declarative_train.source.node import Mapping, Scalar, Sequence, find, to_value
from declarative_train.source.reader import read_text


def read(text: str) -> Mapping:
    node, diagnostics = read_text("a.yaml", text)
    assert not diagnostics
    assert node is not None
    return node


def scalar(text: str, key: str = "a") -> Scalar:
    node = read(text).get(key)
    assert isinstance(node, Scalar)
    return node


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("1e-4", 1e-4),
        ("1E3", 1000.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("-1.5e+3", -1500.0),
        ("+7", 7),
        ("-0", 0),
        ("0o10", 8),
        ("0x1F", 31),
        (".inf", math.inf),
        ("-.Inf", -math.inf),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("off", "off"),
        ("y", "y"),
        ("1:30", "1:30"),
        ("12:30:45", "12:30:45"),
        ("1_000", "1_000"),
        ("0b11", "0b11"),
        ("2026-01-02", "2026-01-02"),
        ("1e", "1e"),
        (".", "."),
        ("+", "+"),
        ("0x", "0x"),
        ("1.2.3", "1.2.3"),
        ("5%", "5%"),
        ("nan", "nan"),
        ("'1'", "1"),
        ('"true"', "true"),
        ("''", ""),
        ("1" * 5000, "1" * 5000),
    ],
)
def test_values(typed: str, value: object) -> None:
    found = scalar(f"a: {typed}\n")
    assert found.value == value
    assert type(found.value) is type(value)


def test_not_a_number_is_a_float() -> None:
    assert math.isnan(scalar("a: .nan\n").value)  # type: ignore[arg-type]


def test_a_sequence_becomes_a_tuple() -> None:
    assert to_value(read("a: [1, {b: [x]}]\n")) == {"a": (1, {"b": ("x",)})}


def test_find() -> None:
    root = read("a:\n  - {b: 1}\n  - 2\n")
    assert find(root, ("a", 0, "b")) is root.get("a").items[0].get("b")  # type: ignore[union-attr]
    for path in [("a", 2), ("a", -1), ("a", "b"), ("c",), ("a", 0, "b", "c")]:
        assert find(root, path) is None


def place(node: Scalar, part: str) -> tuple[int, int]:
    span = node.place(node.text.index(part), len(part))
    return span.line, span.column


def test_spans_of_plain_and_quoted_texts() -> None:
    root = read("a: one\nbb:   'two'   # said\nc: [x, \"y\"]\n")
    spans = {name: root.get(name).span for name in ("a", "bb")}  # type: ignore[union-attr]
    assert (spans["a"].line, spans["a"].column, spans["a"].end_column) == (1, 4, 7)
    assert (spans["bb"].line, spans["bb"].column, spans["bb"].end_column) == (2, 7, 12)
    items = root.get("c")
    assert isinstance(items, Sequence)
    assert [(item.span.column, item.span.end_column) for item in items.items] == [(5, 6), (8, 11)]
    assert (items.span.column, items.span.end_column) == (4, 12)
    assert [scalar.offset for scalar in items.items] == [0, 1]  # type: ignore[union-attr]


def test_places_in_one_line() -> None:
    assert place(scalar("a: mu + sigma\n"), "sigma") == (1, 9)
    assert place(scalar("a: 'mu + sigma'\n"), "sigma") == (1, 10)


def test_places_behind_escapes() -> None:
    assert place(scalar('a: "x\\ty\\u00e9 + z"\n'), "z") == (1, 18)
    assert place(scalar("a: 'it''s z'\n"), "z") == (1, 11)


def test_places_in_texts_of_several_lines() -> None:
    assert place(scalar("a: one\n  two\n  three\n"), "three") == (3, 3)
    assert place(scalar("a: 'one\n\n    two'\n"), "two") == (3, 5)
    assert place(scalar("a: |\n    one\n      two\n    three\n"), "three") == (4, 5)
    assert place(scalar("a: >-\n  one\n  two\n\n  three\n"), "three") == (5, 3)
    assert place(scalar('a: "one \\\n  two"\n'), "two") == (2, 3)


def test_the_span_of_a_block_scalar_is_its_content() -> None:
    node = scalar("a: |\n  one\n  two\nb: 1\n")
    assert node.value == "one\ntwo\n"
    assert (node.span.line, node.span.column, node.span.end_line, node.span.end_column) == (2, 3, 3, 6)
    assert scalar("a: |\nb: 1\n").value == ""


def test_a_number_in_a_block_scalar_is_text() -> None:
    assert scalar("a: |-\n  12\n").value == "12"


def test_columns_count_characters_not_bytes() -> None:
    assert scalar("{é: ü, a: 'x'}\n").span.column == 11
