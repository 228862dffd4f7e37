"""What is YAML but no recipe, and the bounds of reading."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator

import pytest
import yaml

from declarative_train.core.diagnostics.diagnostic import Diagnostic, Severity
from declarative_train.source import building, reader
from declarative_train.source.node import Mapping, Node, Scalar, Sequence, is_template, to_value
from declarative_train.source.reader import read_text


def said(text: str) -> list[tuple[str, str]]:
    """Code and place of everything that is wrong."""
    _, diagnostics = read_text("a.yaml", text)
    return [(d.code, f"{d.span.line}:{d.span.column}-{d.span.end_column}") for d in diagnostics]


def the_one(text: str) -> Diagnostic:
    _, diagnostics = read_text("a.yaml", text)
    assert len(diagnostics) == 1, diagnostics
    return diagnostics[0]


def value(text: str) -> object:
    node, _ = read_text("a.yaml", text)
    return None if node is None else to_value(node)


@pytest.fixture(params=["libyaml", "pure"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "pure":
        monkeypatch.setattr(reader, "PARSER", yaml.SafeLoader)
    return str(request.param)


@pytest.mark.usefixtures("parser")
def test_a_recipe_reads_without_a_word() -> None:
    text = "# story\nname: x\ndata: {source: {type: csv}, fields: [a, b]}\nlist:\n  - a: 1\n    b: 2\n  -\n    c: 3\n"
    node, diagnostics = read_text("a.yaml", text)
    assert not diagnostics
    assert node is not None
    assert to_value(node) == {
        "name": "x",
        "data": {"source": {"type": "csv"}, "fields": ("a", "b")},
        "list": ({"a": 1, "b": 2}, {"c": 3}),
    }
    assert [entry.key.span.line for entry in node] == [2, 3, 4]
    assert (node.span.line, node.span.end_line) == (2, 8)


def test_a_duplicate_key_keeps_the_first() -> None:
    text = "a:\n  b: 1\n  c: 2\n  b: 3\n"
    diagnostic = the_one(text)
    assert diagnostic.code == "Y003"
    assert diagnostic.message == "`b` is written twice in this mapping, first on line 2"
    assert str(diagnostic.span) == "a.yaml:4:3"
    assert str(diagnostic.related[0].span) == "a.yaml:2:3"
    assert value(text) == {"a": {"b": 1, "c": 2}}


def test_an_empty_value_names_the_key_that_stands_beside_it() -> None:
    diagnostic = the_one("model:\n  graph:\n  hidden: {type: linear}\n")
    assert diagnostic.code == "Y009"
    assert str(diagnostic.span) == "a.yaml:2:3"
    assert diagnostic.message == "`graph` has no value: `hidden` on line 3 is not indented below it"
    assert diagnostic.related[0].span.line == 3


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("a:\n", ["1:1-2"]),
        ("a: # nothing\nb: 1\n", ["1:1-2"]),
        ("a: {b, c: 1}\n", ["1:5-6"]),
        ("a:\n  -\n  - 1\n", ["2:3-4"]),
        ("a: &x\nb: 1\n", ["1:1-2"]),
    ],
)
def test_empty_values(text: str, places: list[str]) -> None:
    assert said(text) == [("Y009", place) for place in places]


def test_an_empty_value_is_marked_and_a_null_is_not() -> None:
    root, _ = read_text("a.yaml", "a:\nb: null\nc: ~\nd: ''\n")
    assert root is not None
    assert [entry.value.is_empty for entry in root if isinstance(entry.value, Scalar)] == [True, False, False, False]


@pytest.mark.parametrize(
    ("key", "kind"), [("1", "a number"), ("1.5", "a number"), ("true", "a boolean"), ("~", "null"), ("null", "null")]
)
def test_keys_are_text(key: str, kind: str) -> None:
    diagnostic = the_one(f"a: {{{key}: x}}\n")
    assert (diagnostic.code, diagnostic.message) == ("Y010", f"the key `{key}` is {kind}; keys are text")
    assert diagnostic.fixes[0].replacement == f'"{key}"'
    assert said(f'a: {{"{key}": x}}\n') == []


def test_words_of_yaml_1_1_are_keys() -> None:
    assert value("on: 1\nno: 2\ny: 3\n") == {"on": 1, "no": 2, "y": 3}


def test_collections_as_keys_and_no_key() -> None:
    assert said("a: 1\n? [x]\n: 2\n") == [("Y010", "2:3-6")]
    assert said("a: {? {x: 1} : 2}\n") == [("Y010", "1:7-13")]
    assert [code for code, _ in said(": 2\n")] == ["Y010"]


@pytest.mark.usefixtures("parser")
def test_anchors_aliases_and_merge_keys() -> None:
    text = "base: &base {a: 1, b: 2}\nderived:\n  first: 0\n  <<: *base\n  b: 3\nagain: *base\n"
    assert said(text) == []
    assert value(text) == {"base": {"a": 1, "b": 2}, "derived": {"first": 0, "a": 1, "b": 3}, "again": {"a": 1, "b": 2}}
    assert list(value(text)["derived"]) == ["first", "a", "b"]  # type: ignore[index]
    text = "x: &x {a: 1}\ny: &y {a: 2, b: 2}\nz: {<<: [*x, *y]}\n"
    assert value(text)["z"] == {"a": 1, "b": 2}  # type: ignore[index]


def test_the_span_behind_an_anchor_is_that_of_the_value() -> None:
    root, _ = read_text("a.yaml", "a: &x one\nb: &y [1]\nc: &z\n  d: 1\n")
    assert isinstance(root, Mapping)
    spans = [entry.value.span for entry in root]
    assert [(span.line, span.column) for span in spans] == [(1, 7), (2, 7), (4, 3)]


def test_wrong_aliases() -> None:
    assert the_one("a: &team 1\nb: *taem\n").help == "did you mean `team`? known: team"
    assert '"*x"' in (the_one("a: *x\n").help or "")
    assert said("a: &x [1, *x]\n") == [("Y011", "1:11-13")]
    assert said("a: &x 1\nb: {<<: *x}\n") == [("Y013", "2:5-7")]


def test_an_alias_bomb_is_refused_quickly() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    begin = time.perf_counter()
    node, diagnostics = read_text("a.yaml", "\n".join(lines))
    assert time.perf_counter() - begin < 1
    assert node is None
    assert [d.code for d in diagnostics] == ["Y012"]


def test_deep_nesting_is_refused_without_recursion() -> None:
    assert said(f"a: {'[' * 60}{']' * 60}\n") == []
    for text in ("[" * 100_000, "a: " + "{b: " * 50_000, "- " * 5000, "\n".join(" " * n + "k:" for n in range(2000))):
        begin = time.perf_counter()
        node, diagnostics = read_text("a.yaml", text)
        assert time.perf_counter() - begin < 2
        assert node is None
        assert [d.code for d in diagnostics] == ["Y015"]


def test_aliases_do_not_hide_depth() -> None:
    lines = [f"a0: &a0 {'[' * 30}{']' * 30}", f"a1: &a1 {'[' * 30}*a0{']' * 30}", f"a2: {'[' * 30}*a1{']' * 30}"]
    assert [code for code, _ in said("\n".join(lines))] == ["Y015"]


def test_tags_are_refused_and_read_without_them() -> None:
    diagnostic = the_one("a: !!int 3\n")
    assert (diagnostic.code, diagnostic.message) == ("Y014", "`!!int` is a YAML tag, which recipes do not support")
    assert (diagnostic.span.column, diagnostic.span.end_column) == (4, 9)
    assert value("a: !!int 3\n") == {"a": 3}
    assert said("a: !keep\n") == [("Y014", "1:4-9")]
    assert '"!keep + 1"' in (the_one("a: !keep + 1\n").help or "")
    assert said("a: &x !t {b: 1}\n") == [("Y014", "1:7-9")]
    assert said("a: !<tag:yaml.org,2002:str> x\n") == [("Y014", "1:4-28")]


def test_a_leading_zero_is_a_warning() -> None:
    diagnostic = the_one("a: 010\n")
    assert (diagnostic.code, diagnostic.severity) == ("Y021", Severity.WARNING)
    assert diagnostic.fixes[0].replacement == "10"
    assert value("a: 010\n") == {"a": 10}
    assert said("a: [0, 0.5, 0o10, 0x10, '010', -0]\n") == []
    assert said("a: -007\n") == [("Y021", "1:4-8")]


def test_documents() -> None:
    assert said("---\na: 1\n") == []
    assert said("a: 1\n---\nb: 2\n") == [("Y019", "2:1-4")]
    assert said("a: 1\n...\nb: 2\n") == [("Y019", "3:1-5")]
    assert value("a: 1\n---\nb: 2\n") == {"a": 1}


@pytest.mark.parametrize("text", ["", "\n", "# a story\n", "---\n", "\ufeff", "   \n"])
def test_an_empty_file(text: str) -> None:
    assert [code for code, _ in said(text)] == ["Y018"]
    assert value(text) is None


def test_a_file_that_is_no_mapping() -> None:
    assert the_one("- a\n- b\n").message == "the file is a list, but a recipe consists of keys and values"
    assert the_one("just words\n").code == "Y020"
    assert the_one("name:mlp\n").code == "Y022"


def test_control_characters_are_said_once_and_read_over() -> None:
    diagnostic = the_one("a: x\x00y\nb: \x1b[31m\n")
    assert diagnostic.code == "Y017"
    assert diagnostic.message == "the character U+0000 is not allowed in YAML, and 1 more in this file"
    assert str(diagnostic.span) == "a.yaml:1:5"
    assert value("a: x\x00y\n") == {"a": "x\N{REPLACEMENT CHARACTER}y"}
    assert [code for code, _ in said("a: \ud800\n")] == ["Y017"]


@pytest.mark.parametrize("text", ["\ufeffa: 1\nb: 010\n", "a: 1\r\nb: 010\r\n", "a: 1\rb: 010\r"])
@pytest.mark.usefixtures("parser")
def test_byte_order_marks_and_line_breaks(text: str) -> None:
    root, diagnostics = read_text("a.yaml", text)
    assert root is not None
    assert to_value(root) == {"a": 1, "b": 10}
    assert [str(entry.key.span) for entry in root] == ["a.yaml:1:1", "a.yaml:2:1"]
    assert [str(d.span) for d in diagnostics] == ["a.yaml:2:4"]


def test_lines_are_counted_as_editors_do() -> None:
    root, _ = read_text("a.yaml", "a: 'x\u2028y\x85z'\nb: 1\n")
    assert root is not None
    assert [str(entry.key.span) for entry in root] == ["a.yaml:1:1", "a.yaml:2:1"]


def test_everything_is_said_at_once() -> None:
    text = "a: {{ x }}\nb: 010\nb: 1\nc:\nd: !t 1\ne: *nope\nf: - 1\n"
    assert sorted(code for code, _ in said(text)) == ["Y003", "Y006", "Y007", "Y009", "Y011", "Y014", "Y021"]


def nodes(node: Node) -> Iterator[Node]:
    yield node
    for inner in () if isinstance(node, Scalar) else node.items if isinstance(node, Sequence) else ():
        yield from nodes(inner)
    for entry in node.entries if isinstance(node, Mapping) else ():
        yield entry.key
        yield from nodes(entry.value)


WORDS = ("a: 1", "b: {c: [x, 2.5, {d: ~}], e: 'q r'}", "f: &g {h: '{{ vars.x }}'}", "i: *g", "j:", "k:\t|\n  x\n  y")
OTHERS = ("l: [1,\n 2]", "m: \U0001f600 tail", '"n": null', "o: two\n  lines", "- p", "<<: *g", "r: {s: [{t: 1}]} # u")


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize("seed", range(60))
def test_places_are_those_of_an_editor_however_they_are_found(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken from the parser's marks, or looked up by the offset; and who is called plain holds nothing to look for."""
    chosen = random.Random(seed)
    end = chosen.choice(("\n", "\r\n", "\r"))
    text = chosen.choice(("", "\ufeff", "\ufeff\ufeff")) + end.join(chosen.choices(WORDS + OTHERS, k=5)).replace(
        "\n", end
    )
    text = chosen.choice((text, text.replace("x", "x\u2028"), text.replace("1", "1\x85")))
    found = read_text("a.yaml", text)
    monkeypatch.setattr(building, "_COUNTED_OTHERWISE", re.compile(""))
    assert repr(read_text("a.yaml", text)) == repr(found)
    for node in [] if found[0] is None else nodes(found[0]):
        if not isinstance(node, Scalar) and node.is_plain:
            scalars = [each for each in nodes(node) if isinstance(each, Scalar)]
            assert not any(each.value is None or is_template(str(each.value)) for each in scalars)
