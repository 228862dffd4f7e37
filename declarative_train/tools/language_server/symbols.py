"""Symbols: names that a recipe defines (fields, nodes, blocks with inputs and params, vars, losses), and the places
where it uses them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import NamedTuple

from declarative_train.core.diagnostics.lines import Lines
from declarative_train.core.span import Span
from declarative_train.source.node import Mapping as YamlMapping
from declarative_train.source.node import Node, Path, Scalar, Sequence, find

NAME = re.compile(r"[A-Za-z_]\w*$")
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?!\w)(?!\s*(?:\(|=(?!=)))")  # not a function, not a named argument
_TEMPLATE = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_OF_TEMPLATE = re.compile(r"(?<![\w.])(vars|params)\.([A-Za-z_]\w*)")
EDGES = ("input", "inputs", "target", "mask")


class Symbol(NamedTuple):
    """Name that a recipe defines. `kind`: field, node, block, input, param, var or term. `scope`: path of the mapping
    or list that contains the definition. Two symbols of one name may have different scopes."""

    kind: str
    scope: Path
    name: str


@dataclass(frozen=True, slots=True)
class Occurrence:
    symbol: Symbol
    span: Span
    is_definition: bool


@dataclass(frozen=True, slots=True)
class Entry:
    """Part of a recipe's outline. `span`: position of the whole part. `name_span`: position of its name."""

    name: str
    kind: str
    span: Span
    name_span: Span
    inner: tuple[Entry, ...] = ()


def find_occurrences(root: YamlMapping, texts: Mapping[str, str]) -> list[Occurrence]:
    """Return the definition and every use of each symbol in a recipe. `texts`: a dict from path to text, for the recipe
    and the files that it extends."""
    return list(_Finder(root, texts).all())


class _Finder:
    def __init__(self, root: YamlMapping, texts: Mapping[str, str]) -> None:
        self._root = root
        self._lines = {path: Lines(path, text) for path, text in texts.items()}
        self._symbols: dict[Path, dict[str, Symbol]] = {}

    def all(self) -> Iterator[Occurrence]:
        yield from self._find_defined(("data", "fields"), "field")
        yield from self._find_defined(("vars",), "var")
        yield from self._find_defined(("objective", "losses"), "term")
        yield from self._find_defined(("model", "blocks"), "block")
        yield from self._find_defined(("model", "graph"), "node")
        blocks = self._keys(("model", "blocks"))
        for block in blocks:
            own = ("model", "blocks", block)
            yield from self._find_defined((*own, "params"), "param")
            yield from self._inputs((*own, "inputs"))
            yield from self._find_defined((*own, "graph"), "node")
        fields = self._symbols.get(("data", "fields"), {})
        outside = fields | self._symbols.get(("model", "graph"), {})
        yield from self._graph(("model", "graph"), outside)
        for block in blocks:
            own = ("model", "blocks", block)
            inside = self._symbols.get((*own, "inputs"), {}) | self._symbols.get((*own, "graph"), {})
            yield from self._graph((*own, "graph"), inside)
            for key in ("output", "outputs"):
                yield from self._words(find(self._root, (*own, key)), inside)
        yield from self._objective(outside)
        yield from self._words(find(self._root, ("parallelism", "pipeline", "cut_before")), outside)
        for scalar, path in _scalars(self._root, ()):
            yield from self._templates(scalar, path)

    def _keys(self, path: Path) -> list[str]:
        node = find(self._root, path)
        return [entry.name for entry in node] if isinstance(node, YamlMapping) else []

    def _find_defined(self, path: Path, kind: str) -> Iterator[Occurrence]:
        node = find(self._root, path)
        for entry in node if isinstance(node, YamlMapping) else ():
            symbol = Symbol(kind, path, entry.name)
            self._symbols.setdefault(path, {})[entry.name] = symbol
            span = self._inside(entry.key.span, entry.name)
            if span is not None:
                yield Occurrence(symbol, span, True)

    def _inputs(self, path: Path) -> Iterator[Occurrence]:
        """Yield the places that define the inputs of a block. `path`: path of `inputs`, which is a list of names or a
        mapping from names."""
        node = find(self._root, path)
        if not isinstance(node, Sequence):
            yield from self._find_defined(path, "input")
            return
        for item in node.items:
            if isinstance(item, Scalar):
                symbol = Symbol("input", path, item.text)
                self._symbols.setdefault(path, {})[item.text] = symbol
                if (span := self._inside(item.span, item.text)) is not None:
                    yield Occurrence(symbol, span, True)

    def _graph(self, path: Path, known: Mapping[str, Symbol]) -> Iterator[Occurrence]:
        node = find(self._root, path)
        blocks = self._symbols.get(("model", "blocks"), {})
        for entry in node if isinstance(node, YamlMapping) else ():
            if not isinstance(entry.value, YamlMapping):
                yield from self._words(entry.value, known)
                continue
            for key in (*EDGES, "node"):
                yield from self._words(entry.value.get(key), known)
            yield from self._words(entry.value.get("type"), blocks)

    def _objective(self, known: Mapping[str, Symbol]) -> Iterator[Occurrence]:
        terms = self._symbols.get(("objective", "losses"), {})
        section = find(self._root, ("objective",))
        for node in _mappings(section) if section is not None else ():
            for key in EDGES:
                yield from self._words(node.get(key), known)
            yield from self._words(node.get("of"), terms)

    def _words(self, node: Node | None, known: Mapping[str, Symbol]) -> Iterator[Occurrence]:
        """Yield the occurrences of names in the scalar texts at a YAML node and below it, or nothing if `node` is None.
        `known`: the symbols by name."""
        for scalar, _ in _scalars(node, ()) if node is not None else ():
            lines = self._lines.get(scalar.span.path)
            if lines is None:
                continue
            start, end = _offsets(lines, scalar.span)
            for found in _WORD.finditer(lines.text, start, end):
                if found[0] in known:
                    yield Occurrence(known[found[0]], lines.span(*found.span()), False)

    def _templates(self, scalar: Scalar, path: Path) -> Iterator[Occurrence]:
        lines = self._lines.get(scalar.span.path)
        if lines is None:
            return
        start, end = _offsets(lines, scalar.span)
        for template in _TEMPLATE.finditer(lines.text, start, end):
            for found in _OF_TEMPLATE.finditer(lines.text, *template.span()):
                scope: Path = ("vars",) if found[1] == "vars" else (*path[:3], "params")
                symbol = self._symbols.get(scope, {}).get(found[2])
                if symbol is not None:
                    yield Occurrence(symbol, lines.span(*found.span(2)), False)

    def _inside(self, span: Span, name: str) -> Span | None:
        """Return the exact position of `name` in a YAML key or list item. `span`: position of this key or item, which
        may include quotes. Return None if `name` is not in it, or if the text of its file is not known."""
        lines = self._lines.get(span.path)
        if lines is None:
            return None
        start, end = _offsets(lines, span)
        at = lines.text.find(name, start, end)
        return None if at < 0 else lines.span(at, at + len(name))


def _offsets(lines: Lines, span: Span) -> tuple[int, int]:
    return lines.offset(span.line, span.column), lines.offset(span.end_line, span.end_column)


def _scalars(node: Node, path: Path) -> Iterator[tuple[Scalar, Path]]:
    if isinstance(node, Scalar):
        yield node, path
    elif isinstance(node, Sequence):
        for index, item in enumerate(node.items):
            yield from _scalars(item, (*path, index))
    else:
        for entry in node:
            yield from _scalars(entry.value, (*path, entry.name))


def _mappings(node: Node) -> Iterator[YamlMapping]:
    if isinstance(node, YamlMapping):
        yield node
        for entry in node:
            yield from _mappings(entry.value)
    elif isinstance(node, Sequence):
        for item in node.items:
            yield from _mappings(item)


_LISTED: dict[Path, str] = {  # sections with names of the user's, and what each is
    ("vars",): "var",
    ("data", "fields"): "field",
    ("data", "split"): "set",
    ("model", "blocks"): "block",
    ("model", "graph"): "node",
    ("objective", "losses"): "term",
    ("objective", "metrics"): "metric",
}


def outline(root: YamlMapping, file: str) -> tuple[Entry, ...]:
    """Return the sections of a file, each with the names that it defines."""
    return tuple(_outline(root, (), file))


def _outline(node: Node, path: Path, file: str) -> Iterator[Entry]:
    for entry in node if isinstance(node, YamlMapping) else ():
        key, inner = entry.key.span, (*path, entry.name)
        if key.path != file:
            continue
        kind = "section" if len(inner) <= 2 else _LISTED.get(path, "node")
        kind = _LISTED.get(path, kind)
        opens = len(inner) == 1 or inner in _LISTED or _is_block(inner)
        end = entry.value.span if entry.value.span.path == file else key
        whole = Span(file, key.line, key.column, *max((end.end_line, end.end_column), (key.end_line, key.end_column)))
        below = tuple(_outline(entry.value, inner, file)) if opens else ()
        if len(inner) == 1 or path in _LISTED or below or _is_block(path):
            yield Entry(entry.name, kind, whole, key, below)


def _is_block(path: Path) -> bool:
    return path[:2] == ("model", "blocks") and (len(path) == 3 or (len(path) == 4 and path[3] == "graph"))


def earlier_line(text: str, line: int, before: str) -> int | None:
    """Find a line of `text` in `before`, an earlier version of it. `line`: number of the line in `text`. Return its
    number in `before`, or None if the line is new. Lines count from 1."""
    new, old = text.splitlines(), before.splitlines()
    if not 1 <= line <= len(new):
        return None
    for block in SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks():
        if block.b <= line - 1 < block.b + block.size:
            return block.a + line - block.b
    return None
