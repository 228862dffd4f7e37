"""Parser of the option `--set a.b=1`, which becomes the mapping {a: {b: 1}}. Its spans refer to the option's text."""

from __future__ import annotations

import json
from typing import cast

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.diagnostics.lines import Lines
from declarative_train.source.checks.merging import extends_by_option, wrong_set
from declarative_train.source.checks.yaml_values import empty_option
from declarative_train.source.node import Entry, Mapping, Node, Scalar, to_value
from declarative_train.source.reader import read_value

PREFIX = "--set "


def read_setting(option: str) -> tuple[Mapping | None, list[Diagnostic]]:
    """Parse the text after `--set` to a mapping; return None and diagnostics if the text is wrong. A part of the path
    that contains dots is quoted: `model.parameters."logits.weight".tie=embed.weight`."""
    text = PREFIX + option
    lines = Lines(text, text)
    parts, equals = _path(text)
    if parts is None or equals is None:
        span = lines.span(len(PREFIX), max(len(text), len(PREFIX) + 1))
        wanted = "write `PATH=VALUE`, such as `--set training.steps=100`"
        return None, [wrong_set(span, f"`{option}` is not a setting: a path and a value are required", wanted)]
    for start, end, name in parts:
        if not name:
            span = lines.span(start, max(end, start + 1))
            return None, [wrong_set(span, "the path has an empty part", "write names with single dots between")]
    name = text[len(PREFIX) : equals]
    if parts[0][2] == "extends":
        return None, [extends_by_option(lines.span(len(PREFIX), equals))]
    node, diagnostics = _value(text, equals + 1)
    if node is None or (isinstance(node, Scalar) and node.is_empty):
        return None, diagnostics or [empty_option(lines.span(len(PREFIX), equals + 1), name)]
    for start, end, part in reversed(parts):
        key = Scalar(part, part, lines.span(start, end))
        node = Mapping((Entry(key, node),), lines.span(start, len(text)))
    assert isinstance(node, Mapping)
    return node, diagnostics


def wrap_in_path(key: str, node: Node) -> Mapping | None:
    """Return nested mappings with `node` at the dotted path `key`: `a.b` -> {a: {b: node}}. Return None if `key` is not
    a path."""
    parts, equals = _path(f"{PREFIX}{key}=")
    if parts is None or equals is None or not all(name for _, _, name in parts):
        return None
    for _, _, part in reversed(parts):
        node = Mapping((Entry(Scalar(part, part, node.span), node),), node.span)
    assert isinstance(node, Mapping)
    return node


def as_option(setting: Mapping) -> str:
    """Return the text that follows `--set` to make a setting, such as `training.microbatch_size=8`. `setting`: the
    setting as a mapping, as `read_setting` returns it."""
    parts, node = list[str](), cast(Node, setting)
    while isinstance(node, Mapping) and len(node.entries) == 1:
        name = node.entries[0].name
        parts.append(f'"{name}"' if "." in name else name)
        node = node.entries[0].value
    return f"{'.'.join(parts)}={node.text if isinstance(node, Scalar) else json.dumps(to_value(node))}"


def _value(text: str, begin: int) -> tuple[Node | None, list[Diagnostic]]:
    value = text[begin:].strip()
    if value.startswith("{{") and value.endswith("}}"):  # the shell has removed the quotes
        start = text.index(value, begin)
        return Scalar(value, value, Lines(text, text).span(start, start + len(value))), []
    return read_value(text, text, begin)


def _path(text: str) -> tuple[list[tuple[int, int, str]] | None, int | None]:
    """Return (parts, offset of the `=`) for a `--set` option. `parts`: (start, end, name) of each part of its dotted
    path. Return (None, None) if the option does not have the form PATH=VALUE."""
    parts: list[tuple[int, int, str]] = []
    start = at = len(PREFIX)
    while at < len(text):
        character = text[at]
        if character in "\"'" and at == start:
            close = text.find(character, at + 1)
            if close < 0:
                return None, None
            at = close + 1
        elif character in ".=":
            parts.append((start, at, _unquote(text[start:at])))
            if character == "=":
                return parts, at
            start = at = at + 1
        else:
            at += 1
    return None, None


def _unquote(part: str) -> str:
    if len(part) > 1 and part[0] in "\"'" and part[-1] == part[0]:
        return part[1:-1]
    return part.strip()
