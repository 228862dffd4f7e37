"""YAML text -> nodes that remember their place, and all that is wrong with the text.

libyaml's events are read (PyYAML's own parser where libyaml is missing); what they mean is decided here and in
`scalars.py`, because both parsers follow YAML 1.1. Where the meaning of a broken line is clear (`syntax.py`), it is
read as it was meant, so that one mistake does not hide the others.
"""

from __future__ import annotations

import re

import yaml

from declarative_train.diagnostics.diagnostic import Diagnostic
from declarative_train.diagnostics.lines import Lines, num_marks
from declarative_train.source import lexing
from declarative_train.source.building import Builder, Stop
from declarative_train.source.checks.yaml_layout import missing_space
from declarative_train.source.checks.yaml_values import control_character, empty_file, not_a_mapping
from declarative_train.source.node import Mapping, Node, Scalar
from declarative_train.terms.span import Span

MAX_REPAIRS = 20
_LONG_TEXT = 200_000  # characters; reading again after a repair costs as much as the first time

_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

PARSER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_text(path: str, text: str) -> tuple[Mapping | None, list[Diagnostic]]:
    """The mapping of a file, or None when it cannot be read as one. `path` names the text in spans."""
    node, diagnostics = read_value(path, text, num_marks(text))
    if isinstance(node, Mapping) or (diagnostics and node is None):
        return node, diagnostics
    lines = Lines(path, text)
    if node is None or (isinstance(node, Scalar) and node.is_empty):
        return None, [*diagnostics, empty_file(_first_line(lines))]
    if isinstance(node, Scalar) and not node.quoted and lexing.KEY_WITHOUT_SPACE.fullmatch(node.text):
        return None, [*diagnostics, missing_space(node.span, node.text)]
    kind = "a text" if isinstance(node, Scalar) else "a list"
    span = Span(path, node.span.line, node.span.column, node.span.line, node.span.column + 1)
    return None, [*diagnostics, not_a_mapping(span, kind)]


def read_value(path: str, text: str, begin: int = 0) -> tuple[Node | None, list[Diagnostic]]:
    """The value that stands in `text` from offset `begin` on; None when there is none, or it cannot be read."""
    lines = Lines(path, text)
    broken = [found.start() for found in _FORBIDDEN.finditer(text, begin)]
    mistakes: list[Diagnostic] = []
    if broken:
        mistakes.append(control_character([lines.span(at, at + 1) for at in broken], text[broken[0]]))
        text = _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
    working, repairs = text, dict[int, str]()
    while True:
        builder = Builder(lines, begin, repairs)
        try:
            return _built(builder, working[begin:]), _once(mistakes, builder.diagnostics)
        except Stop:
            return None, _once(mistakes, builder.diagnostics)
        except yaml.MarkedYAMLError as error:
            from declarative_train.source.syntax import explain  # most recipes need no explaining

            found = explain(error, lines, begin, builder.last_quote, repairs)
        mistakes.append(found.diagnostic)
        limit = MAX_REPAIRS if len(text) < _LONG_TEXT else 2
        if found.repair is None or len(repairs) >= limit or found.repair[0] in repairs:
            return None, _once(mistakes, builder.diagnostics)
        start, end = found.repair
        repairs[start] = text[start:end]
        working = f"{working[:start]}{'x' * (end - start)}{working[end:]}"


def _built(builder: Builder, text: str) -> Node | None:
    parser = PARSER(text)
    try:
        return builder.build(parser)
    finally:
        parser.dispose()


def _once(*found: list[Diagnostic]) -> list[Diagnostic]:
    """Both the parser and the builder may have noticed."""
    return list(dict.fromkeys(diagnostic for each in found for diagnostic in each))


def _first_line(lines: Lines) -> Span:
    return Span(lines.path, 1, 1, 1, 1 + len(lexing.without_comment(lines.line(1))))
