"""Completion of names that the JSON schema cannot contain: fields, nodes, columns, blocks and their params, vars, sets,
metrics.

A mark is inserted at the cursor before the text is parsed and the document is merged with its bases. Which names are
valid there depends on the path of this mark in the document."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from declarative_train.app.views.graph import describe_spec
from declarative_train.components.expressions.functions import FUNCTIONS
from declarative_train.core.diagnostics.lines import Lines
from declarative_train.recipe.merge_rules import MERGE_RULES
from declarative_train.source import load as read_document
from declarative_train.source.node import Mapping, Node, Path, Scalar, Sequence, find
from declarative_train.tools.language_server.analysis import Analysis

MARK = "zzcursorzz"
TOKEN = re.compile(r"[\w./]*$")
OPEN_TEMPLATE = re.compile(r"\{\{(?:(?!\}\}).)*$", re.DOTALL)
EDGES = ("input", "inputs", "target", "mask")
COLUMNS = ("column", "columns", "by", "sort")


@dataclass(frozen=True, slots=True)
class CompletionName:
    """Name that can be inserted. `kind`: field, node, function, column, block, param, var, set, metric or term.
    `detail`: text that is shown next to the name."""

    text: str
    kind: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class _Cursor:
    """Cursor in a document. `is_key`: whether it is in a key, not in a value. `path`: the path of the value, or of the
    mapping that contains the key. `before`: the part of the value or key before the cursor."""

    path: Path
    is_key: bool
    before: str


def token_before(text: str, offset: int) -> str:
    """Return the part of a name directly before the cursor, which a completion replaces. `offset`: index of the cursor
    in `text`."""
    found = TOKEN.search(text, text.rfind("\n", 0, offset) + 1, offset)
    return "" if found is None else found[0]


def complete(path: str, text: str, offset: int, known: Analysis | None) -> list[CompletionName]:
    """Return the names that are valid at the cursor. `offset`: index of the cursor in `text`. `known`: the last
    analysis without an error, which gives columns and shapes, or None."""
    lines = Lines(path, text)
    line, column = lines.place(offset)
    is_alone = not lines.line(line)[: column - 1].strip() and not lines.line(line)[column - 1 :].strip()
    marked = f"{text[:offset]}{MARK}{':' if is_alone else ''}{text[offset:]}"
    document, _ = read_document(path, text=marked, rules=MERGE_RULES)
    cursor = None if document is None else _find(document.root, ())
    if document is None or cursor is None:
        return []
    return [*dict.fromkeys(_Names(document.root, known).at(cursor))]


def _find(node: Node, path: Path) -> _Cursor | None:
    if isinstance(node, Scalar):
        return _Cursor(path, False, node.text.partition(MARK)[0]) if MARK in node.text else None
    if isinstance(node, Sequence):
        found = (_find(item, (*path, index)) for index, item in enumerate(node.items))
        return next((each for each in found if each is not None), None)
    for entry in node:
        if MARK in entry.name:
            return _Cursor(path, True, entry.name.partition(MARK)[0])
        inner = _find(entry.value, (*path, entry.name))
        if inner is not None:
            return inner
    return None


class _Names:
    """Finder of the names that are valid at a cursor in a recipe, which is merged with its base recipes. `known`: the
    last analysis without an error, from which columns and shapes are taken; None if there was none."""

    def __init__(self, root: Mapping, known: Analysis | None) -> None:
        self.root = root
        self.known = known

    def at(self, cursor: _Cursor) -> list[CompletionName]:
        path = cursor.path
        if not cursor.is_key and OPEN_TEMPLATE.search(cursor.before):
            return self._template(path)
        if path[:2] == ("model", "graph") and len(path) > 2:
            return self._in_node(cursor, path[:2], path[2:])
        if path[:2] == ("model", "blocks") and len(path) > 3:
            if path[3] == "graph" and len(path) > 4:
                return self._in_node(cursor, path[:4], path[4:])
            return self._nodes(path[:3]) if path[3] in ("output", "outputs") and not cursor.is_key else []
        if path == ("model", "parameters") and cursor.is_key:
            return self._nodes(("model",))
        return [] if cursor.is_key else self._in_section(path)

    def _in_section(self, path: Path) -> list[CompletionName]:
        if path[0] == "objective" and len(path) == 4:
            if path[3] == "of":
                return [CompletionName(key, "term") for key in self._keys(("objective", "losses"))]
            return [*self._fields(), *self._nodes(("model",))] if path[3] in EDGES else []
        if path[0] == "data":
            return self._columns() if any(word in COLUMNS for word in path[2:]) else []
        if path[:2] == ("evaluation", "sets"):
            return self._sets()
        if path[-1] == "metric":
            return self._metrics()
        return self._nodes(("model",)) if path[:3] == ("parallelism", "pipeline", "cut_before") else []

    def _in_node(self, cursor: _Cursor, graph: Path, way: Path) -> list[CompletionName]:
        """Return the names that can be written at a cursor in a node of the model. `graph`: path of the graph that
        contains the node. `way`: keys from the graph to the cursor, the node's name first."""
        scope, own = graph[:-1], way[0]
        kind = self._text((*graph, *way[:1], "type"))
        if cursor.is_key:
            if way[1:] == ("inputs",):
                return [CompletionName(key, "param", "input") for key in self._ports(("model", "blocks", kind))]
            if len(way) > 1:
                return []
            params = find(self.root, ("model", "blocks", kind, "params"))
            taken = self._keys((*graph, own))
            entries = params.entries if isinstance(params, Mapping) else ()
            return [
                CompletionName(each.name, "param", _words(each.value)) for each in entries if each.name not in taken
            ]
        edges = [each for each in self._edges(scope) if each.text != own]
        if len(way) == 1:
            return [*edges, *(CompletionName(name, "function") for name in sorted(FUNCTIONS))]
        if way[1] == "type":
            return [CompletionName(key, "block") for key in self._keys(("model", "blocks"))]
        if way[1] == "node":
            return [each for each in edges if each.kind == "node"]
        return edges if way[1] in EDGES else []

    def _edges(self, scope: Path) -> list[CompletionName]:
        outside = (
            self._fields()
            if scope == ("model",)
            else [CompletionName(key, "field", "input") for key in self._ports(scope)]
        )
        return [*outside, *self._nodes(scope)]

    def _fields(self) -> list[CompletionName]:
        plan = None if self.known is None else self.known.plan
        shapes = {} if plan is None else {each.name: describe_spec(each.tensor) for each in plan.data.fields}
        return [CompletionName(key, "field", shapes.get(key, "")) for key in self._keys(("data", "fields"))]

    def _nodes(self, scope: Path) -> list[CompletionName]:
        """Return the names of the nodes in `scope`, the model or a block."""
        graph = find(self.root, (*scope, "graph"))
        shapes = self._shapes() if scope == ("model",) else {}
        entries = [each for each in graph if MARK not in each.name] if isinstance(graph, Mapping) else []
        return [
            CompletionName(each.name, "node", " ".join(filter(None, (_work(each.value), shapes.get(each.name)))))
            for each in entries
        ]

    def _shapes(self) -> dict[str, str]:
        plan = None if self.known is None else self.known.plan
        if plan is None:
            return {}
        nodes = [*plan.batch_graph.nodes, *plan.graph.nodes]
        return {each.name.partition(".")[0]: describe_spec(next(iter(each.outputs.values()))) for each in nodes}

    def _ports(self, block: Path) -> list[str]:
        """Return the names of a block's inputs. The recipe writes them as a list `[x, mask]` or as the keys of a
        mapping."""
        inputs = find(self.root, (*block, "inputs"))
        if isinstance(inputs, Sequence):
            return [item.text for item in inputs.items if isinstance(item, Scalar)]
        return self._keys((*block, "inputs"))

    def _template(self, path: Path) -> list[CompletionName]:
        variables = find(self.root, ("vars",))
        entries = variables.entries if isinstance(variables, Mapping) else ()
        names = [CompletionName(f"vars.{each.name}", "var", _words(each.value)) for each in entries]
        if path[:2] != ("model", "blocks"):
            return names
        params = find(self.root, (*path[:3], "params"))
        own = params.entries if isinstance(params, Mapping) else ()
        return [
            CompletionName(f"params.{each.name}", "param", _words(each.value)) for each in own
        ]  # a block cannot use vars

    def _columns(self) -> list[CompletionName]:
        if self.known is None or self.known.loaded.recipe is None:
            return []
        try:
            columns = self.known.loaded.recipe.data.source.open().columns
        except Exception:  # lint reports a source that cannot be read
            return []
        return [CompletionName(each.name, "column", each.dtype) for each in columns.values()]

    def _sets(self) -> list[CompletionName]:
        return [CompletionName(key, "set") for key in self._keys(("data", "split"))]

    def _metrics(self) -> list[CompletionName]:
        """Return the names of the values that an evaluation gives: `<set>/<metric>`, `<set>/loss`,
        `<set>/loss/<term>`."""
        terms = self._keys(("objective", "losses"))
        words = ["loss", *(f"loss/{term}" for term in terms if len(terms) > 1), *self._keys(("objective", "metrics"))]
        return [CompletionName(f"{each}/{word}", "metric") for each in self._keys(("data", "split")) for word in words]

    def _keys(self, path: Path) -> list[str]:
        node = find(self.root, path)
        return [each.name for each in node if MARK not in each.name] if isinstance(node, Mapping) else []

    def _text(self, path: Iterable[str | int]) -> str:
        node = find(self.root, tuple(path))
        return node.text if isinstance(node, Scalar) else ""


def _work(node: Node) -> str:
    """Return a text on what a node computes: its type such as `linear`, or its expression."""
    if isinstance(node, Mapping):
        kind = node.get("type")
        return kind.text if isinstance(kind, Scalar) else ""
    return f"= {node.text}" if isinstance(node, Scalar) else ""


def _words(node: Node) -> str:
    return node.text if isinstance(node, Scalar) else ""
