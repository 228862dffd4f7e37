"""Expansion of a model: from the merged section `model` to a tree of nodes. Blocks are expanded, copies made, templates
rendered and references resolved.

Templates of the main graph can read `vars` and `env`, those of a block its `params`. Those of a node with `repeat` can
also read `index` (docs/decisions.md, Q4 and Q20)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from collections.abc import Mapping as MappingABC
from dataclasses import replace
from typing import NamedTuple

from declarative_train.components.component import Layer
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.names import NODE_WORDS
from declarative_train.core.packs import hooks
from declarative_train.core.span import Span
from declarative_train.recipe.checks.blocks import bad_reuse, model_too_large, recursive_block
from declarative_train.recipe.checks.wiring import bad_reference, unused_field, unused_input
from declarative_train.recipe.model.block_spans import (
    field_spans,
    move_outside,
    param_spans,
    params_read,
    report_outside,
)
from declarative_train.recipe.model.blocks import BlockDefinition, TypeLibrary
from declarative_train.recipe.model.blocks_params import bind_params
from declarative_train.recipe.model.expand_paths import set_paths, units_of
from declarative_train.recipe.model.node_draft import (
    MOST_NODES,
    BlockDraft,
    BrokenDraft,
    EntryReader,
    ExpressionDraft,
    ReuseDraft,
    Typed,
)
from declarative_train.recipe.model.references import Edge, first_key, no_reference, read_reference
from declarative_train.recipe.model.tree import (
    BlockNode,
    BlockRules,
    ExpressionNode,
    LayerNode,
    ModelNode,
    ReuseNode,
    Scope,
    Wire,
)
from declarative_train.recipe.model.wiring import Surroundings, Wiring
from declarative_train.recipe.paths import Paths
from declarative_train.recipe.reading import read_node
from declarative_train.source.document import SourceFile
from declarative_train.source.node import Entry, Mapping, Node, Scalar, scalars
from declarative_train.source.template import Templates

MOST_NESTED = 40
_NO_FILES = Paths(frozenset())


class Expanded(NamedTuple):
    """Expanded model. `scope`: its graph. `rules`: the settings of parameters that its blocks define; those of an inner
    block come before those of the block around it. `files`: the files of the shipped blocks that it uses. `wiring`: the
    connections of the main graph."""

    scope: Scope
    rules: tuple[BlockRules, ...]
    files: tuple[SourceFile, ...]
    wiring: Wiring

    def wire(self, reference: str) -> Wire:
        """Return the wire for a reference in the objective, such as `kl`, `lstm.hidden` or `layers.3`. A wire is the
        name of a field, or `node:output`.
        """
        edge = read_reference(reference, Span("", 1, 1, 1, 1))
        wire = None if edge is None or self.wiring.problem_of(edge) is not None else self.wiring.wire(edge)
        assert wire is not None  # a wrong reference gives a diagnostic, and then there is no Expanded
        return wire


def expand(
    model: Mapping,
    fields: Collection[str],
    names: MappingABC[str, object],
    templates: Templates,
    layers: MappingABC[str, type[Layer]],
    *,
    objective: Collection[tuple[str, Span]] | None = None,
    paths: Paths = _NO_FILES,
    field_outputs: MappingABC[str, tuple[str, ...]] | None = None,
) -> tuple[Expanded | None, list[Diagnostic]]:
    """Return the expanded model, or None and all errors of its graph and blocks.

    `model`          the section as written
    `fields`         names of the data's fields; with {name: span}, unused fields are reported
    `names`          `vars` and `env` for templates
    `layers`         {type: class}
    `objective`      (reference, span) of each tensor that the objective reads, the outputs of the model; None if it has
                     errors: then nothing is reported as unused
    `paths`          resolves paths in the recipe
    `field_outputs`  {field: its outputs} for fields with several outputs"""
    library = TypeLibrary(layers, model.get("blocks"))
    expander = _Expander(library, templates, paths)
    graph = model.get("graph")
    if not isinstance(graph, Mapping) or not graph.entries:
        return None, library.diagnostics
    spans = fields if isinstance(fields, MappingABC) else {}
    frame = _GraphFrame(graph, Surroundings(tuple(fields), input_spans=spans, field_outputs=field_outputs or {}), names)
    wiring = expander.wire_up(frame)
    outputs, wrong = _find_outputs(wiring, objective or ())
    used = None if wrong or objective is None else [edge.name for edge in outputs.values()]
    scope = expander.build(frame, wiring, outputs, used, "the objective")
    diagnostics = [*expander.diagnostics, *(problem for problem in wrong if problem is not None)]
    if not any(problem.is_error for problem in diagnostics) and objective is not None:
        wires = [*(scope.inputs if scope is not None else ()), *(text for text, _ in objective)]
        read = {wire.partition(".")[0] for wire in wires}
        diagnostics += [unused_field(span, name) for name, span in spans.items() if name not in read]
    if scope is None or any(problem.is_error for problem in diagnostics):
        return None, diagnostics
    whole, rules = set_paths(scope, expander.opened)
    return Expanded(whole._replace(units=units_of(whole)), rules, tuple(library.files.values()), wiring), diagnostics


def _find_outputs(
    wiring: Wiring, objective: Collection[tuple[str, Span]]
) -> tuple[dict[str, Edge], list[Diagnostic | None]]:
    """Return (correct, wrong) for the references of the objective, each given as (text, span). `correct`: {text:
    reference}, without references to fields. `wrong`: the error of each wrong reference, or None if the error is
    already reported."""
    outputs: dict[str, Edge] = {}
    wrong: list[Diagnostic | None] = []
    for text, span in objective:
        edge = read_reference(text, span)
        if edge is None and text in wiring.drafts:
            wrong.append(None)  # a node with an invalid name, which is already reported
            continue
        problem = no_reference(text, span) if edge is None else wiring.problem_of(edge)
        if problem is not None:
            wrong.append(problem)
        elif edge is not None and (edge.name in wiring.drafts or text != wiring.wire(edge)):
            outputs[text] = edge
    return outputs, wrong


class _GraphFrame(NamedTuple):
    """Graph to expand, and the names that it can use. `around`: names outside the graph to which its nodes can refer.
    `names`: variables of its templates. `chain`: the blocks that contain it, outermost first; () for the main graph."""

    graph: Mapping
    around: Surroundings
    names: MappingABC[str, object]
    chain: tuple[BlockDefinition, ...] = ()
    param_spans: MappingABC[str, Span] = {}  # in a shipped block: {parameter: span of its value in the recipe}

    @property
    def inside(self) -> BlockDefinition | None:
        return self.chain[-1] if self.chain else None


class _Expander:
    """Expander of the blocks of one model. A block that is used again with the same parameters and connected inputs is
    expanded only once."""

    def __init__(self, library: TypeLibrary, templates: Templates, paths: Paths) -> None:
        self._paths = paths
        self._library = library
        self._templates = templates
        self._said: dict[tuple[str, Span, str], Diagnostic] = {}
        self._memory: dict[tuple[object, ...], Scope | None] = {}
        self.opened: dict[int, tuple[BlockDefinition, MappingABC[str, object]]] = {}
        self._sizes: dict[int, int] = {}
        self._given: dict[Span, tuple[str, ...]] = {}  # span of a value in the recipe -> block parameters that it sets

    @property
    def diagnostics(self) -> list[Diagnostic]:
        return [*self._library.diagnostics, *self._said.values()]

    def _report(self, found: Iterable[Diagnostic]) -> bool:
        """Record each of the diagnostics once, and return whether one of them is an error."""
        any_error = False
        for problem in found:
            self._said.setdefault((problem.code, problem.span, problem.message), problem)
            any_error |= problem.is_error
        return any_error

    def wire_up(self, frame: _GraphFrame) -> Wiring:
        reader = EntryReader(self._library, self._templates, frame.names, frame.inside, frame.graph)
        wiring = Wiring([reader.read(entry) for entry in frame.graph], frame.around, self._library)
        self._report(reader.found)
        self._report(wiring.diagnostics)
        return wiring

    def build(
        self,
        frame: _GraphFrame,
        wiring: Wiring,
        outputs: MappingABC[str, Edge],
        used: Collection[str] | None,
        readers: str,
    ) -> Scope | None:
        """Return the expanded graph of the model or of a block; None if it has an error. `outputs`: {name: reference}
        of its outputs.

        `used`: names of the nodes that are read from outside the graph, so that unused nodes can be reported; None:
        none are reported. `readers`: what reads nodes from outside, for messages ("the objective")."""
        is_whole = not any(problem.is_error for problem in wiring.diagnostics)
        left_out: set[str] = set()
        if used is not None and is_whole:
            left_out, dead = wiring.find_dead(used, readers)
            is_whole &= not self._report(dead)
        nodes: list[ModelNode] = []
        size = 0
        for draft in wiring.order:
            if isinstance(draft, BrokenDraft):
                is_whole = False
                continue
            if draft.is_off or (draft.name in left_out and is_whole):
                continue
            for node in self._nodes(draft, frame, wiring):
                if node is None:
                    is_whole = False
                    break
                nodes.append(node)
                size += 1 + (self._sizes[id(node.scope)] if isinstance(node, BlockNode) else 0)
                if size > MOST_NODES:
                    self._report([model_too_large(draft.entry.key.span, f"more than {MOST_NODES:,} nodes")])
                    return None
        if not is_whole or wiring.has_cycle:
            return None
        self._check_reuses(nodes)
        read = {wire for node in nodes for wire in node.inputs.values() if ":" not in wire}
        ends = {name: wire for name, edge in outputs.items() if (wire := wiring.wire(edge)) is not None}
        inputs = tuple(
            name
            for name in frame.around.wires
            if (name in read if frame.inside is None else name not in frame.around.open_inputs)
        )
        scope = Scope(inputs, tuple(nodes), ends)
        self._sizes[id(scope)] = size
        return scope

    # -- nodes

    def _nodes(self, draft: Typed | ExpressionDraft, frame: _GraphFrame, wiring: Wiring) -> Iterable[ModelNode | None]:
        """Yield the model's node for the entry `draft` of the graph or, with `repeat`, one node for each copy. If a
        node has an error, yield None and stop."""
        bound = {port: edge for port, edge in wiring.edges[draft.name].items() if edge is not None}
        inputs = {port: wire for port, edge in bound.items() if (wire := wiring.wire(edge)) is not None}
        spans = {port: edge.span for port, edge in bound.items() if port in inputs}
        if draft.num_copies is None or isinstance(draft, ExpressionDraft):
            yield self._node(draft, draft.name, inputs, spans, frame, None)
            return
        made: ModelNode | None = None
        varies = _mentions_index(draft.fields)
        for index in range(draft.num_copies):
            name = f"{draft.name}.{index}"
            first = first_key(draft.ports)
            if index and first is not None:
                chained = _chain(draft, first)
                inputs = {port: f"{draft.name}.{index - 1}:{output}" for port, output in chained.items()} | {
                    port: wire for port, wire in inputs.items() if port not in chained
                }
                for port in chained:
                    spans.setdefault(port, draft.type_span)
            if made is not None and not varies and index > 1:
                made = replace(made, name=name, path=name, inputs=inputs)
            else:
                made = self._node(draft, name, inputs, spans, frame, index)
            yield made
            if made is None:
                return

    def _node(
        self,
        draft: Typed | ExpressionDraft,
        name: str,
        inputs: dict[str, Wire],
        spans: dict[str, Span],
        frame: _GraphFrame,
        index: int | None,
    ) -> ModelNode | None:
        common = (name, name, inputs, draft.entry.value.span, draft.entry.key.span, dict(spans))
        if isinstance(draft, ExpressionDraft):
            return ExpressionNode(*common, draft.expression, draft.scalar)
        if isinstance(draft, ReuseDraft):
            target = draft.target
            return ReuseNode(*common, target.name if target.copy is None else f"{target.name}.{target.copy}")
        names = frame.names if index is None else {**frame.names, "index": index}
        fields, found = self._templates.render(draft.fields, names)
        if self._report(found):
            return None
        fields = move_outside(draft.fields, fields, frame.param_spans)
        assert isinstance(fields, Mapping)
        if isinstance(draft, BlockDraft):
            published = None
            for read_block in hooks("read_block") if draft.block.file is not None else ():
                fields, made, found = read_block(draft.block.name, fields, self._paths.resolve)
                published = published or made
                if self._report(found):
                    return None
            scope = self._open(draft, fields, frozenset(inputs), frame)
            return None if scope is None else BlockNode(*common, draft.type_name, scope, published=published)
        fields, found = draft.layer.complete_fields(fields, self._paths.resolve)
        if self._report(found):
            return None
        kind = Entry(Scalar("type", "type", draft.type_span), Scalar(draft.type_name, draft.type_name, draft.type_span))
        whole = fields.with_entries((kind, *draft.reserved, *fields.entries))
        layer, found = read_node(draft.layer, whole, draft.type_span, NODE_WORDS)
        self._report(found)
        if layer is None:
            return None
        spans = dict(field_spans(fields))
        params = {}
        if frame.param_spans:
            named = {field: self._name_param(draft.fields, field, span) for field, span in spans.items()}
            params = {field: name for field, name in named.items() if name is not None}
        return LayerNode(*common, layer, spans, params)

    def _name_param(self, written: Mapping, field: str, span: Span) -> str | None:
        """Return the block parameter that sets the key `field` of a node in a shipped block; None if unknown.
        `written`: keys of the node before rendering. `span`: place of the key's value in the recipe. If several
        parameters have this span (those of a published model), return the one that the template of `field` reads."""
        names = self._given.get(span, ())
        if len(names) > 1:
            entry = written.entry(field)
            read = set() if entry is None else params_read(entry.value)
            names = tuple(name for name in names if name in read)
        return names[0] if len(names) == 1 else None

    def _open(self, draft: BlockDraft, fields: Mapping, bound: frozenset[str], frame: _GraphFrame) -> Scope | None:
        """Return the expanded graph of the block that the node `draft` uses; None if it has an error. `fields`: the
        node's keys that belong to the block, with templates rendered. `bound`: names of the block's inputs that the
        node connects. `frame`: the graph that contains the node."""
        block, at = draft.block, draft.type_span
        shipped = block.file is not None
        present = {entry.name for entry in (*draft.reserved, *fields)}
        values, found = bind_params(block.name, block.params, fields, at, self._templates, present, shipped=shipped)
        if self._report(found) or values is None:
            return None
        if any(port.name not in bound and not port.optional for port in block.ports):
            return None  # the wrong reference of this input is already reported
        before = set(self._said)
        is_outside = block.file is not None and (frame.inside is None or frame.inside.file is None)
        if is_outside:
            for entry in fields:
                span = entry.value.span
                self._given[span] = tuple(dict.fromkeys((*self._given.get(span, ()), entry.name)))
        scope = self._expand_block(block, values, param_spans(block, fields), bound, at, frame)
        if is_outside:
            for key in self._said.keys() - before:
                self._said[key] = report_outside(self._said[key], block, fields, at)
        return scope

    def _expand_block(
        self,
        block: BlockDefinition,
        values: MappingABC[str, object],
        spans: MappingABC[str, Span],
        bound: frozenset[str],
        at: Span,
        frame: _GraphFrame,
    ) -> Scope | None:
        if block in frame.chain:
            names = [each.name for each in frame.chain[frame.chain.index(block) :]]
            self._report([recursive_block(at, [*names, block.name])])
            return None
        if len(frame.chain) >= MOST_NESTED:
            self._report([model_too_large(at, f"more than {MOST_NESTED} nested blocks")])
            return None
        ports = tuple(port.name for port in block.ports)
        still_open = frozenset(ports) - bound
        key = (id(block), repr(sorted(values.items())), still_open, tuple(sorted(spans.items())))
        if key not in self._memory:
            around = Surroundings(ports, still_open, block.name, block.port_spans)
            self._memory[key] = self._open_body(
                block, _GraphFrame(block.graph, around, {"params": values}, (*frame.chain, block), spans)
            )
            scope = self._memory[key]
            if scope is not None:
                self.opened[id(scope)] = (block, {"params": values})
        return self._memory[key]

    def _open_body(self, block: BlockDefinition, frame: _GraphFrame) -> Scope | None:
        wiring = self.wire_up(frame)
        problems = [problem for edge in block.outputs.values() if (problem := wiring.problem_of(edge)) is not None]
        is_wrong = self._report(problems)
        if block.file is None:
            self._report(self._unread_inputs(block, wiring))
        used = None if is_wrong else [edge.name for edge in block.outputs.values()]
        scope = self.build(frame, wiring, {} if is_wrong else block.outputs, used, "the block's outputs")
        if scope is not None and not is_wrong and len(scope.outputs) < len(block.outputs):
            lost = next(edge for name, edge in block.outputs.items() if name not in scope.outputs)
            self._report([bad_reference(lost.span, f"`{lost.text}`, which is an unconnected input,")])
            return None
        return None if is_wrong else scope

    def _unread_inputs(self, block: BlockDefinition, wiring: Wiring) -> Iterator[Diagnostic]:
        """Yield an error for each input of a block that no output and no node of the block reads. (A switched-off node
        counts as a reader.) Yield nothing if a node has errors, because what it reads may be unknown.
        """
        if wiring.diagnostics or not wiring.knows_all_readers:
            return
        read = {edge.name for edges in wiring.edges.values() for edge in edges.values() if edge is not None}
        read |= {edge.name for edge in block.outputs.values()}
        unread = (port.name for port in block.ports if port.name not in read)
        yield from (unused_input(block.port_spans[name], name, block.name) for name in unread)

    def _check_reuses(self, nodes: Iterable[ModelNode]) -> None:
        """Report each `reuse` of a block that does not connect the same inputs as the block's first call. The connected
        inputs decide which nodes the block has. They may be connected to other values."""
        by_name = {node.name: node for node in nodes}
        for node in nodes:
            target = by_name.get(node.target) if isinstance(node, ReuseNode) else None
            if isinstance(target, BlockNode) and set(target.inputs) != set(node.inputs):
                message = (
                    f"`{node.name}` wires {_list_names(node.inputs)}, but `{target.name}` {_list_names(target.inputs)}"
                )
                self._report([bad_reuse(node.span, message, "a block is called again with the same inputs connected")])


def _chain(draft: Typed, first: str) -> dict[str, str]:
    """Return {input of a copy: output of the previous copy that it reads}, for the copies of a `repeat`. An input reads
    the output of the same name; inputs without one are left out. But the node's first input, `first`, reads the first
    output if no output has its name."""
    named = {port.name: port.name for port in draft.ports if not port.variadic and port.name in draft.outputs}
    return {first: named.pop(first, draft.outputs[0]), **named}


def _list_names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "nothing"


def _mentions_index(node: Node) -> bool:
    return any(isinstance(each.value, str) and "index" in each.value for each in scalars(node, plain=False))
