"""Hover text for a place in a recipe: the resolved value, where it is set, its shapes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path as FilePath

from declarative_train.app.index import MOST_FIRST
from declarative_train.app.index import find as find_answer
from declarative_train.app.views.graph import describe_spec
from declarative_train.core.amounts import format_count
from declarative_train.core.diagnostics.lines import Lines
from declarative_train.core.span import Span
from declarative_train.graph.graph import Graph, Node
from declarative_train.plan.plan import Plan
from declarative_train.planner.text.estimate import estimate_in_words
from declarative_train.recipe.flat_values import Leaf
from declarative_train.recipe.model.tree import BlockNode, ExpressionNode, LayerNode, ModelNode, ReuseNode
from declarative_train.recipe.model.walk import Frame, all_nodes
from declarative_train.recipe.recipe import Recipe
from declarative_train.source.node import Mapping, Path, Scalar, Sequence, find, is_template
from declarative_train.source.node import Node as YamlNode
from declarative_train.tools.language_server.analysis import Analysis
from declarative_train.tools.language_server.places import holds

MOST_LINES = 24
_WORD = re.compile(r"[A-Za-z][\w.]*\w")


@dataclass(frozen=True, slots=True)
class Hover:
    """Hover text. `text`: its Markdown. `span`: the part of the recipe that it describes."""

    text: str
    span: Span


def hover(analysis: Analysis, line: int, column: int) -> Hover | None:
    """Return the hover text for a position in a recipe. Line and column count from 1. Return None if there is nothing
    to show, or if the recipe has errors and so no resolved values."""
    recipe, document = analysis.loaded.recipe, analysis.document
    if recipe is None or document is None:
        return None
    found = [
        (path, span)
        for path, span in _places(document.root, ())
        if span.path == analysis.path and holds(span, line, column)
    ]
    if not found:
        return None
    path, span = max(found, key=lambda each: len(each[0]))
    nodes = _nodes_at(recipe, analysis.path, line, column) if path[0] == "model" else []
    parts = []
    if nodes:
        parts = [_field_of_node(nodes[0], path, recipe), _node_card(nodes, analysis.plan)]
    else:
        parts = [*_data_facts(analysis.plan, path), *_describe_plan(analysis.plan, path)]
        parts.append(_values(recipe, path, analysis.path))
    parts += [_list_replaced(analysis, path)]
    text = "\n\n".join(part for part in parts if part)
    return Hover(text, span) if text else None


def hover_word(path: str, text: str, line: int, column: int) -> Hover | None:
    """Return the result of `dtrain find` for the word at a position, as hover text. Return None if there is no word or
    nothing is found."""
    typed = Lines(path, text).line(line)
    word = next((found for found in _WORD.finditer(typed) if found.start() < column <= found.end() + 1), None)
    if word is None or (found := find_answer(word[0])).is_empty:
        return None
    hint = [] if found.hint is None else [f"`{word[0]}`: {found.hint}"]
    entries = [f"- {each.kind} `{each.name}`: {each.about}" for each in found.entries[:MOST_FIRST]]
    span = Span(path, line, word.start() + 1, line, word.end() + 1)
    return Hover("\n".join([*hint, *entries]), span)


def _places(node: YamlNode, path: Path) -> Iterator[tuple[Path, Span]]:
    """Yield (path, span) of every key, and of every value that is not a mapping."""
    if isinstance(node, Mapping):
        for entry in node:
            inner = (*path, entry.name)
            yield inner, entry.key.span
            yield from _places(entry.value, inner)
    else:
        yield path, node.span
        if isinstance(node, Sequence):
            for index, item in enumerate(node.items):
                yield from _places(item, (*path, index))


# values


def _values(recipe: Recipe, path: Path, file: str) -> str:
    """Return Markdown with the resolved value at `path`, or with all values below it. Each value has the place where it
    is set, or `default`. Return "" if there are no values; also for several values in the section `model`. `file`: the
    open file; a place in it is shown as a line number only."""
    leaves = list(recipe.leaves())
    exact = next((leaf for leaf in leaves if path[: len(leaf.path)] == leaf.path), None)
    if exact is not None:
        template = _template(find(recipe.document.root, exact.path))
        return f"`{_join_path(exact.path)}`: `{_json(exact)}`{template} ({_origin(exact, file)})"
    below = [leaf for leaf in leaves if leaf.path[: len(path)] == path]
    if not below or path[0] == "model":
        return ""
    names = [_join_path(leaf.path[len(path) :]) for leaf in below]
    width = max(map(len, names))
    lines = [
        f"{name:<{width}}  {_json(leaf)}  # {_origin(leaf, file)}" for name, leaf in zip(names, below, strict=True)
    ]
    if len(lines) > MOST_LINES:
        lines = [*lines[:MOST_LINES], f"... and {len(lines) - MOST_LINES} more: `dtrain show`"]
    return "\n".join(["```yaml", *lines, "```"])


def _template(written: YamlNode | None) -> str:
    return f", from `{written.text}`" if isinstance(written, Scalar) and is_template(written.text) else ""


def _json(leaf: Leaf) -> str:
    return json.dumps(leaf.value, ensure_ascii=False, default=str)


def _join_path(path: Path) -> str:
    return ".".join(map(str, path))


def _origin(leaf: Leaf, file: str) -> str:
    if leaf.span is None:
        return "default"
    if leaf.span.path == file:
        return f"line {leaf.span.line}"
    return f"{FilePath(leaf.span.path).name}:{leaf.span.line}"


def _list_replaced(analysis: Analysis, path: Path) -> str:
    """Return a text on the values at `path` that this recipe replaces in its bases (recipes that it extends). Each line
    has the place of a replaced value and the reason. Return "" if there are none."""
    dropped = analysis.document.dropped if analysis.document is not None else ()
    return "\n".join(
        f"{_join_path(each.path)} of {FilePath(each.span.path).name}:{each.span.line}: {each.reason} here"
        for each in dropped
        if each.path == path and each.by.path == analysis.path
    )


def _data_facts(plan: Plan | None, path: Path) -> list[str]:
    """Return lines on the field or set at `path`: its shape and type, or its number of samples. Return [] for other
    paths or without a plan."""
    if plan is None or len(path) < 2 or path[0] != "data":
        return []
    if path[1] == "fields" and len(path) > 2:
        return [f"`{each.name}` {describe_spec(each.tensor)}" for each in plan.data.fields if each.name == path[2]]
    wanted = {"split": path[2:3], "source": ("training",)}.get(str(path[1]), ())
    return [
        f"`{each.name}`: {format_count(each.num_samples, 'sample')}" for each in plan.data.sets if each.name in wanted
    ]


def _describe_plan(plan: Plan | None, path: Path) -> list[str]:
    """Return lines on the planner's decision about the key at `path`: the reason for `parallelism: auto`, or the
    estimate for `layout.hardware`. Return [] for other keys or without a plan."""
    if plan is not None and path[0] == "parallelism" and plan.choice is not None:
        return [f"`auto`: {plan.choice.reason}"]
    estimate = None if plan is None else plan.estimate
    if path[:2] == ("layout", "hardware") and estimate is not None and estimate.step_s is not None:
        return [estimate_in_words(estimate)]
    return []


# nodes


def _nodes_at(recipe: Recipe, file: str, line: int, column: int) -> list[ModelNode]:
    """Return the innermost node that is written at this position of a file, or [] if there is none. A node in a block
    is returned once for every use of the block."""
    found = [
        node
        for _, node in all_nodes(Frame(recipe.model.scope))
        if node.key_span.path == file
        and (holds(node.key_span, line, column) or (node.span.path == file and holds(node.span, line, column)))
    ]
    if not found:
        return []
    innermost = max(found, key=lambda node: (node.key_span.line, node.key_span.column))
    return [node for node in found if node.key_span == innermost.key_span]


def _field_of_node(node: ModelNode, path: Path, recipe: Recipe) -> str:
    """Return the resolved value of a layer's key, as text. `path`: path of the key in the document. Return "" if the
    node is not a layer with this key."""
    name = str(path[-1])
    if not isinstance(node, LayerNode) or name not in type(node.layer).model_fields or name == "type":
        return ""
    value = json.dumps(getattr(node.layer, name), ensure_ascii=False, default=str)
    return f"`{name}`: `{value}`{_template(find(recipe.document.root, path))}"


def _node_card(nodes: list[ModelNode], plan: Plan | None) -> str:
    """Return a text on what a node computes, with its inputs, outputs and parameters. `nodes`: the node or, if it is in
    a block, its copies in all uses of the block."""
    node = nodes[0]
    title = f"`{node.path}` {_work(node)}"
    if len(nodes) > 1:
        title += f", the first of {len(nodes)}"
    located = None if plan is None else _locate(plan, node.path)
    if plan is None or located is None:
        return title
    graph, lowered = located
    rows = [(f"in   {_name(port, edge)}", describe_spec(graph.spec(edge))) for port, edge in lowered.inputs.items()]
    several = len(lowered.outputs) > 1
    rows += [(f"out  {name}" if several else "out", describe_spec(spec)) for name, spec in lowered.outputs.items()]
    held = sum(
        each.num_elements for each in plan.parameters if each.name.startswith(f"{node.path}.") and each.tie is None
    )
    rows += [("parameters", f"{held:,}")] if held else []
    width = max(len(name) for name, _ in rows)
    return "\n".join([title, "", "```text", *(f"{name:<{width}}  {what}" for name, what in rows), "```"])


def _work(node: ModelNode) -> str:
    if isinstance(node, LayerNode):
        return node.layer.type
    if isinstance(node, BlockNode):
        return node.block
    if isinstance(node, ReuseNode):
        return f"again: `{node.target}`"
    assert isinstance(node, ExpressionNode)
    return f"= `{node.scalar.text}`"


def _name(port: str, edge: str) -> str:
    source = edge.replace(":", ".").removesuffix(".output")
    return source if source == port else f"{port}: {source}"


def _locate(plan: Plan, path: str) -> tuple[Graph, Node] | None:
    return next((found for graph in (plan.graph, plan.batch_graph) for found in _within(graph, "", path)), None)


def _within(graph: Graph, prefix: str, path: str) -> Iterator[tuple[Graph, Node]]:
    for node in graph.nodes:
        here = f"{prefix}{node.name}"
        if here == path:
            yield graph, node
        elif node.graph is not None and path.startswith(f"{here}."):
            yield from _within(node.graph, f"{here}.", path)
