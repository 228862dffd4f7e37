"""Syntax errors in plain words, at the place of the mistake, the same with libyaml and with PyYAML's own parser."""

from __future__ import annotations

import random

import pytest
import yaml

from declarative_train.source import reader
from declarative_train.source.node import to_value
from declarative_train.source.reader import read_text

CASES = {
    # name: (text, code, place, words of the message, the value that is read all the same)
    "template": ("a: {{ x }}\nb: 1\n", "Y006", "1:4-11", "`{{ x }}` needs quotes", {"a": "{{ x }}", "b": 1}),
    "template with an index": ("a: {{ x[0] }}\n", "Y006", "1:4-14", "needs quotes", {"a": "{{ x[0] }}"}),
    "template and more": ("a: {{ x }} + 1  # no\n", "Y006", "1:4-15", "`{{ x }} + 1`", {"a": "{{ x }} + 1"}),
    "template in a mapping": ("a: {p: r/{{ x }}, q: 1}\n", "Y006", "1:8-17", "", {"a": {"p": "r/{{ x }}", "q": 1}}),
    "template in a list": ("a: [1, {{ x }}]\n", "Y006", "1:8-15", "", {"a": (1, "{{ x }}")}),
    "template in an item": ("a:\n  - {{ x['k'] }}\n", "Y006", "2:5-17", "", {"a": ("{{ x['k'] }}",)}),
    "star": ("a: *x + 1\nb: 2\n", "Y007", "1:4-10", "begins with `*`", {"a": "*x + 1", "b": 2}),
    "star and blank": ("a: * x\n", "Y007", "1:4-7", "begins with `*`", {"a": "* x"}),
    "ampersand": ("a: & x\n", "Y007", "1:4-7", "begins with `&`", {"a": "& x"}),
    "percent": ("a: % 2\n", "Y007", "1:4-7", "begins with `%`", {"a": "% 2"}),
    "at": ("a: @x\n", "Y007", "1:4-6", "begins with `@`", {"a": "@x"}),
    "backtick": ("a: `x`\n", "Y007", "1:4-7", "begins with a backtick", {"a": "`x`"}),
    "dash": ("a: - b\n", "Y007", "1:4-7", "begins with `-`", {"a": "- b"}),
    "pipe": ("a: |x\nb: 1\n", "Y007", "1:4-6", "begins with `|`", {"a": "|x", "b": 1}),
    "bracket": ("a: [1, 2][0]\nb: 3\n", "Y007", "1:4-13", "begins with `[`", {"a": "[1, 2][0]", "b": 3}),
    "brace": ("a: {b: 1} x\n", "Y007", "1:4-12", "begins with `{`", {"a": "{b: 1} x"}),
    "colon": ("a: x if b: c\n", "Y007", "1:4-13", "contains `: `", {"a": "x if b: c"}),
    "colon in an item": ("a:\n  - b: c: d\n", "Y007", "2:8-12", "contains `: `", {"a": ({"b": "c: d"},)}),
    "index in a mapping": ("a: {l: x[:, -1], b: 1}\n", "Y007", "1:8-16", "", {"a": {"l": "x[:, -1]", "b": 1}}),
    "list and index in a mapping": ("a: {l: [x, y][0]}\n", "Y007", "1:8-17", "", {"a": {"l": "[x, y][0]"}}),
    "quote never closed": ('a: "abc\nb: 1\n', "Y002", "1:4-8", 'the quote `"` is not closed', None),
    "quote closed by another": ("a: 'abc\nb: 'x'\n", "Y002", "1:4-8", "closed only on line 2", None),
    "text after a quote": ('a: "b" c\nd: 1\n', "Y025", "1:8-9", 'text after the closing `"`', None),
    "list never closed": ("a: [1, 2\nb: 3\n", "Y004", "1:4-9", "the `[` is not closed", None),
    "mapping never closed": ("a:\n  b: {c: 1\n  d: 2\n", "Y004", "2:6-11", "the `{` is not closed", None),
    "unclosed at the end": ("a: [1, 2", "Y004", "1:4-9", "the `[` is not closed", None),
    "wrong bracket": ("a: [x, y}\n", "Y004", "1:9-10", "`}` cannot close `[`", None),
    "bracket too many": ("a: [1, 2]]\n", "Y004", "1:10-11", "the `]` closes nothing", None),
    "bracket alone": ("a: ]\n", "Y004", "1:4-5", "the `]` closes nothing", None),
    "comma": ("a: {b: 1 c: 2}\n", "Y024", "1:10-11", "a comma is missing before `c`", None),
    "comma over two lines": ("a: {b: 1\n    c: 2}\n", "Y024", "2:5-6", "a comma is missing before `c`", None),
    "tab": ("a:\n\tb: 1\n", "Y005", "2:1-2", "a tab indents this line", None),
    "tabs": ("a:\n  b: 1\n\tc: 1\n\td: 2\n", "Y005", "3:1-2", "and 1 more line too", None),
    "below a value": ("a: 1\n  b: 2\n", "Y008", "2:3-4", "`b` is indented below `a: 1`", None),
    "too far left": ("a:\n    b: 1\n  c: 2\n", "Y008", "3:3-7", "indented by 2 spaces, which fits no line", None),
    "item too far left": ("a:\n  - b: 1\n    c: 2\n   d: 3\n", "Y008", "4:4-8", "indented by 3 spaces", None),
    "key among items": ("a:\n- b\nc\n- d: 1\n", "Y026", "3:1-2", "`c` is not a key", None),
    "item among keys": ("a: 1\n- b\n", "Y008", "2:1-4", "a list item (`- `) is among the keys", None),
    "key in a list": ("- a\nb: 1\n", "Y008", "2:1-5", "a key is among the items of a list", None),
    "no space": ("a:\n  b:3\n  c: 4\n", "Y022", "2:3-6", "a space is missing after the `:`", None),
    "no space, first": ("b:3\nc: 4\n", "Y022", "1:1-4", "a space is missing after the `:`", None),
    "no space, alone": ("a:\n  b:3\n", "Y022", "2:3-6", "a space is missing after the `:`", {"a": "b:3"}),
    "no space in a mapping": ("a: {b:3}\n", "Y022", "1:5-8", "a space is missing", {"a": {"b:3": None}}),
    "no colon": ("a: 1\nb\nc: 2\n", "Y026", "2:1-2", "`b` is not a key", None),
    "escape": ('a: "\\d+"\n', "Y027", "1:5-7", "`\\d` is not an escape in double quotes", None),
    "escape with a code": ('a: "\\xzz"\n', "Y027", "1:5-7", "is not an escape", None),
    "comma first": ("a: ,b\n", "Y001", "1:4-6", "this is not YAML", None),
    "after the end": ("{a: 1} b\n", "Y001", "1:8-9", "text continues after the end", None),
    "closed after the end": ("{a: 1}}\n", "Y004", "1:7-8", "the `}` closes nothing", None),
}


@pytest.mark.parametrize("pure", [False, True], ids=["libyaml", "pure"])
@pytest.mark.parametrize("name", CASES)
def test_one_mistake_one_line(name: str, pure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if pure:
        monkeypatch.setattr(reader, "PARSER", yaml.SafeLoader)
    text, code, place, words, value = CASES[name]
    node, diagnostics = read_text("a.yaml", text)
    found = [(d.code, f"{d.span.line}:{d.span.column}-{d.span.end_column}") for d in diagnostics]
    assert found == [(code, place)]
    (diagnostic,) = diagnostics
    assert words in diagnostic.message
    assert diagnostic.help
    assert "\n" not in diagnostic.message + diagnostic.help
    assert (None if node is None else to_value(node)) == value


def test_help_says_where_a_line_could_stand() -> None:
    _, (diagnostic,) = read_text("a.yaml", "a:\n    b: 1\n  c: 2\n")
    assert diagnostic.help == "indent it by 4 to align with `b` on line 2 or 0 to align with `a` on line 1"


def test_fixes_quote_what_was_meant() -> None:
    _, (diagnostic,) = read_text("a.yaml", 'a: {{ x["k"] }}\n')
    assert diagnostic.fixes[0].replacement == "'{{ x[\"k\"] }}'"
    _, (diagnostic,) = read_text("a.yaml", 'a: it\'s: "so"\n')
    assert diagnostic.fixes[0].replacement == "'it''s: \"so\"'"


def test_a_plain_text_with_a_template_in_the_middle_is_fine() -> None:
    node, diagnostics = read_text("a.yaml", "path: runs/{{ vars.x }}/a\n")
    assert not diagnostics
    assert node is not None
    assert to_value(node) == {"path": "runs/{{ vars.x }}/a"}


def test_several_mistakes_of_syntax_in_one_pass() -> None:
    text = "a: {{ x['k'] }}\nb: *y + 1\nc: p: q\nd: {e: {{ z[0] }}, f: {{ w }}}\n"
    node, diagnostics = read_text("a.yaml", text)
    assert sorted(d.span.line for d in diagnostics) == [1, 2, 3, 4, 4]
    assert node is not None
    assert to_value(node) == {
        "a": "{{ x['k'] }}",
        "b": "*y + 1",
        "c": "p: q",
        "d": {"e": "{{ z[0] }}", "f": "{{ w }}"},
    }


def test_what_was_read_before_an_error_is_said_too() -> None:
    _, diagnostics = read_text("a.yaml", "a: 010\nb: {c: 1, c: 2}\nd: [1, 2\n")
    assert [d.code for d in diagnostics] == ["Y004", "Y021", "Y003"]


SEED_TEXT = """\
# a recipe
name: digits
vars: {width: 32, list: [1, 2]}
data:
  source: {type: csv, path: "data/*.csv"}
  fields:
    pixels: {columns: "p*", scale: 0.0625}
model:
  graph:
    hidden: {type: linear, out_features: "{{ vars.width }}", input: pixels}
    z: mu + exp(log_var / 2)
    text: |
      two
      lines
    again: &x {a: 1}
    alias: *x
"""


@pytest.mark.parametrize("pure", [False, True], ids=["libyaml", "pure"])
def test_broken_text_never_breaks_the_reader(pure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeded mutations: always a tree, a diagnostic or both, with every place inside the text."""
    if pure:
        monkeypatch.setattr(reader, "PARSER", yaml.SafeLoader)
    chance = random.Random(7)
    alphabet = "{}[]:,-&*!|>%@`'\"#\t\n ?~\\abc01é\u2028\x00\x85"
    for _ in range(300 if pure else 1500):
        text = list(SEED_TEXT)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(text))
            deed = chance.randrange(3)
            if deed == 0:
                text[at] = chance.choice(alphabet)
            elif deed == 1:
                del text[at]
            else:
                text[at:at] = chance.choices(alphabet, k=chance.randint(1, 3))
        broken = "".join(text)
        node, diagnostics = read_text("a.yaml", broken)
        assert node is not None or diagnostics
        num_lines = broken.count("\n") + broken.count("\r") + 1
        for diagnostic in diagnostics:
            assert 1 <= diagnostic.span.line <= num_lines, (broken, diagnostic)
            assert diagnostic.span.column >= 1
            assert (diagnostic.span.end_line, diagnostic.span.end_column) >= (
                diagnostic.span.line,
                diagnostic.span.column,
            ), (broken, diagnostic)
