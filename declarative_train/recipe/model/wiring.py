"""Wiring of one graph: which node reads which, an order of the nodes, and diagnostics of unused nodes.

A wire names a value: `name` is an input of the graph, `node:output` an output of a node. If the node is a copy of a
`repeat`, its index is a part of the name: `layers.3:output`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Mapping as MappingABC
from itertools import pairwise
from typing import NamedTuple

from declarative_train.components.component import Port
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.diagnostics.suggest import nearest
from declarative_train.core.names import is_name
from declarative_train.core.span import Span
from declarative_train.recipe.checks.blocks import bad_reuse
from declarative_train.recipe.checks.wiring import (
    bad_reference,
    cycle,
    dead_node,
    name_clash,
    open_input,
    open_port,
    unknown_copy,
    unknown_edge,
    unknown_output,
)
from declarative_train.recipe.model.blocks import TypeLibrary
from declarative_train.recipe.model.node_draft import (
    BlockDraft,
    BrokenDraft,
    ExpressionDraft,
    LayerDraft,
    NodeDraft,
    ReuseDraft,
    Typed,
    counts_only,
    find_called,
)
from declarative_train.recipe.model.references import Edge, bind, first_key, open_required
from declarative_train.recipe.model.tree import Wire


class Surroundings(NamedTuple):
    """Names outside a graph to which its nodes can refer.

    inputs         fields of the data, or the inputs of the block
    open_inputs    inputs of the block that are not connected where it is used
    block          name of the block; "" for the model
    input_spans    {input: span of its name}
    field_outputs  {field: names of its outputs} for fields with several
    """

    inputs: tuple[str, ...]
    open_inputs: frozenset[str] = frozenset()
    block: str = ""
    input_spans: MappingABC[str, Span] = {}
    field_outputs: MappingABC[str, tuple[str, ...]] = {}

    @property
    def wires(self) -> tuple[Wire, ...]:
        """Names of all values that the `inputs` provide. The first output of an input NAME is called NAME; the other
        outputs of a field are called NAME.OUTPUT."""
        return tuple(
            wire
            for name in self.inputs
            for wire in (name, *(f"{name}.{output}" for output in self.field_outputs.get(name, ())[1:]))
        )


class Wiring:
    """Connections between the nodes of one graph. `diagnostics`: all errors. `order`: the nodes in an order in which
    each follows the nodes that it reads (the order of the text, if there is a cycle)."""

    def __init__(self, drafts: Iterable[NodeDraft], around: Surroundings, library: TypeLibrary) -> None:
        self.around = around
        self._library = library
        self.diagnostics: list[Diagnostic] = []
        self.knows_all_readers = True
        self.drafts: dict[str, NodeDraft] = {}
        for draft in drafts:
            self._add(draft)
        self.edges: dict[str, dict[str, Edge | None]] = {}
        self._read_reuses()
        self._bind_all()
        self._read_by: dict[str, set[str]] = {name: set() for name in self.drafts}  # node -> nodes that read it
        self._reads: dict[str, dict[str, Span]] = {name: {} for name in self.drafts}
        for name, edges in self.edges.items():
            for key, edge in edges.items():
                if edge is None:
                    self.knows_all_readers = False
                elif not self._follow(name, key, edge):
                    edges[key] = None
        self.has_cycle = False
        self.order = self._sort()

    def _add(self, draft: NodeDraft) -> None:
        if draft.name in self.around.inputs:
            what = "input of the block" if self.around.block else "field"
            other = self.around.input_spans.get(draft.name)
            self.diagnostics.append(name_clash(draft.entry.key.span, draft.name, what, other))
            return
        self.drafts[draft.name] = draft

    def _read_reuses(self) -> None:
        """Give each `reuse` node the inputs and outputs of the node that it calls again."""
        for draft in self._reuses():
            called = draft.called = self._find_reused(draft)
            if called is None:
                self.drafts[draft.name] = BrokenDraft(
                    name=draft.name, entry=draft.entry, is_off=draft.is_off, wanted=draft.wanted
                )
            else:
                draft.ports, draft.outputs, draft.is_off = called.ports, called.outputs, draft.is_off or called.is_off

    def _reuses(self) -> list[ReuseDraft]:
        return [draft for draft in self.drafts.values() if isinstance(draft, ReuseDraft)]

    def _find_reused(self, draft: ReuseDraft) -> LayerDraft | BlockDraft | None:
        seen, edge = {draft.name}, draft.target
        while True:
            target = self.drafts.get(edge.name)
            if target is None:
                known = [name for name, each in self.drafts.items() if isinstance(each, LayerDraft | BlockDraft)]
                close = nearest(edge.name, known)
                hint = f"did you mean `{close}`?" if close else "name a node of this graph"
                self.diagnostics.append(bad_reuse(edge.span, f"there is no node `{edge.name}` here", hint))
                return None
            if isinstance(target, BrokenDraft):
                return None
            if isinstance(target, ExpressionDraft):
                message = f"`{edge.name}` is an expression and has no parameters"
                self.diagnostics.append(bad_reuse(edge.span, message, "write the expression again"))
                return None
            if not self._is_one_node(edge, target):
                return None
            if not isinstance(target, ReuseDraft):
                draft.target = edge
                return target
            if target.name in seen:
                self.diagnostics.append(
                    bad_reuse(edge.span, "these reuses refer to each other", "refer to a layer or a block")
                )
                return None
            seen.add(target.name)
            edge = target.target

    def _is_one_node(self, edge: Edge, target: NodeDraft) -> bool:
        if target.num_copies is None and edge.copy is not None:
            self.diagnostics.append(unknown_copy(edge.span, edge.name, None))
        elif target.num_copies is not None and edge.copy is None:
            message = f"`{edge.name}` is {target.num_copies} nodes in a chain"
            hint = f"name one copy, `{edge.name}.0`, or put the chain into a block"
            self.diagnostics.append(bad_reuse(edge.span, message, hint))
        elif target.num_copies is not None and edge.copy is not None and edge.copy >= target.num_copies:
            self.diagnostics.append(unknown_copy(edge.span, edge.name, target.num_copies))
        else:
            return True
        return False

    def _bind_all(self) -> None:
        above = Edge(self.around.inputs[0], None, None, "", Span("", 0, 0, 0, 0), True) if self.around.block else None
        for draft in self.drafts.values():
            self.edges[draft.name] = self._edges(draft, above)
            above = Edge(draft.name, None, None, draft.name, draft.entry.key.span, is_default=True)

        for draft in self.drafts.values():
            if isinstance(draft, LayerDraft | ReuseDraft) and counts_only(draft):
                self.edges[draft.name] = self._bind(draft, self._find_counted())

    def _edges(self, draft: NodeDraft, above: Edge | None) -> dict[str, Edge | None]:
        if isinstance(draft, ExpressionDraft):
            edges = draft.edges
            lost = [name for name, edge in edges.items() if edge is None]
            self.diagnostics += [bad_reference(draft.place_of(name), f"`{name}`") for name in lost]
            return edges
        if not isinstance(draft, BrokenDraft):
            return {} if counts_only(draft) else self._bind(draft, above)  # `_samples` connects these later
        if draft.wanted is None:
            self.knows_all_readers = False  # an expression with a syntax error may read any node
            return {}
        # The names of the inputs are unknown, so the references are numbered.
        return {str(i): edge for i, edge in enumerate(draft.wanted.edges or [above])}

    def _find_counted(self) -> Edge | None:
        """Return the default input of a node, such as `parameter`, that needs only the number of samples. In a block,
        it is the first input of the block. In the model, it is the first field that a layer or block reads, or else the
        first field. None if the graph has no inputs."""
        read = [
            edge.name
            for draft in self.drafts.values()
            if not isinstance(draft, ExpressionDraft)
            for edge in self.edges[draft.name].values()
            if edge
        ]
        inputs = self.around.inputs
        names = inputs if self.around.block else (*(name for name in inputs if name in read), *inputs)
        return Edge(names[0], None, None, "", Span("", 0, 0, 0, 0), True) if names else None

    def _bind(self, draft: Typed, above: Edge | None) -> dict[str, Edge | None]:
        if above is not None:
            above = Edge(above.name, None, None, above.text, draft.type_span, is_default=True)
        bound, found = bind(draft.wanted, draft.ports, draft.type_name, above)
        self.diagnostics += found
        for port in open_required(draft.ports, bound) if not found else []:
            self.diagnostics.append(self._open_port(draft, port))
        return bound

    def _open_port(self, draft: Typed, port: Port) -> Diagnostic:
        if port is draft.ports[0]:
            message = f"`{draft.name}` is the first node, so its input must be set"
            close = ", ".join(self.around.inputs[:6])
            return open_port(
                draft.type_span, message, f"add `input: NAME`; fields: {close}" if close else "add `input: NAME`"
            )
        message = f"`{draft.name}` does not connect the input `{port.name}` of `{draft.type_name}`"
        return open_port(draft.type_span, message, f"connect it: `inputs: {{{port.name}: NAME}}`")

    # -- following references

    def _follow(self, reader: str, key: str, edge: Edge) -> bool:
        """Check the reference `edge`, which the node `reader` has for its input `key`, and record which node it reads.
        Report a wrong reference. Return False if it is wrong, or leads to a node with errors.
        """
        problem = self.problem_of(edge, self.drafts[reader])
        if problem is not None:
            self.diagnostics.append(problem)
            return False
        if edge.name in self.drafts:
            self._read_by[edge.name].add(reader)
            self._reads[reader].setdefault(edge.name, edge.span)
            return not isinstance(self.drafts[edge.name], BrokenDraft)
        if edge.name not in self.around.open_inputs:
            return True
        return self._check_open(self.drafts[reader], key, edge)

    def _check_open(self, reader: NodeDraft, key: str, edge: Edge) -> bool:
        """Return whether the node `reader` may read `edge`, an input of the block that is not connected where the block
        is used. It may if the key `key` is optional, or if the node is switched off or has errors. Otherwise report an
        error."""
        port = next((port for port in reader.ports if port.name == key), None)
        if reader.is_off or isinstance(reader, BrokenDraft) or (port is not None and port.optional):
            return True
        self.diagnostics.append(open_input(edge.span, edge.name, self.around.block, reader.name))
        return False

    def problem_of(self, edge: Edge, reader: NodeDraft | None = None) -> Diagnostic | None:
        """Return the error of a reference. None if the reference is correct, or leads to a node with an error that is
        already reported. `reader`: the node with the reference; None if it is outside of the graph.
        """
        if edge.name in self.around.inputs and edge.name not in self.drafts:
            outputs = self.around.field_outputs.get(edge.name, ())
            if edge.copy is None and not edge.below and edge.output in (None, *outputs):
                return None
            if outputs:
                name = edge.text.partition(".")[2]
                message = f"the field `{edge.name}` has no output `{name}`"
                return unknown_output(edge.span, message, outputs, name)
            what = "an input of the block" if self.around.block else "a field"
            return unknown_output(
                edge.span, f"`{edge.name}` is {what} and has no outputs", [], help=f"write `{edge.name}`"
            )
        draft = self.drafts.get(edge.name)
        if draft is None:
            is_refused = any(not is_name(name) and name.lower().replace("-", "_") == edge.name for name in self.drafts)
            return None if is_refused else self._unknown(edge, reader)  # `Logits` for `logits` is reported at its name
        if isinstance(draft, BrokenDraft):
            return None
        if draft.is_off:
            return self._problem_of_off(edge, draft)
        if edge.copy is not None and (draft.num_copies is None or edge.copy >= draft.num_copies):
            return unknown_copy(edge.span, edge.name, draft.num_copies)
        if edge.below or (edge.output is not None and edge.output not in draft.outputs):
            return self._no_output(edge, draft)
        return None

    def _problem_of_off(self, edge: Edge, draft: NodeDraft) -> Diagnostic | None:
        if edge.copy is None and edge.output in (None, draft.outputs[0]) and not edge.below:
            return None
        message = f"`{edge.name}` is disabled here and equals its first input, so there is no `{edge.text}`"
        return unknown_output(edge.span, message, [], help=f"write `{edge.name}`")

    def _no_output(self, edge: Edge, draft: NodeDraft) -> Diagnostic:
        output = edge.output or edge.below.lstrip(".")
        message = f"`{edge.name}` has no output `{output}`{edge.below if edge.output else ''}"
        called = find_called(draft)
        if isinstance(called, BlockDraft) and called.block.graph.entry(output) is not None:
            name = called.block.name
            hint = f"only the outputs of a block are visible: add `outputs: {{..., {output}: {output}}}` to `{name}`"
            return unknown_output(edge.span, message, [], help=hint)
        return unknown_output(edge.span, message, draft.outputs, output)

    def _unknown(self, edge: Edge, reader: NodeDraft | None) -> Diagnostic:
        known = [*self.around.inputs, *self.drafts]
        hint = None
        lone = reader.expression.lone_name if isinstance(reader, ExpressionDraft) else None
        if lone == edge.name and edge.name in self._library.types():
            hint = f"for the layer write `{{type: {edge.name}}}`"
        elif self.around.block and nearest(edge.name, known) is None:
            inputs = ", ".join(self.around.inputs)
            hint = f"the block `{self.around.block}` sees only its nodes and its inputs ({inputs}): add an input"
        return unknown_edge(edge.span, edge.name, known, hint)

    def wire(self, edge: Edge) -> Wire | None:
        """Return the wire that a correct reference names. A reference to a switched-off node (`when: false`) means the
        value that the node's first input reads. Return None if that input is not connected, or if the reference names
        an optional input of the block that is not connected."""
        seen: set[str] = set()
        while True:
            draft = self.drafts.get(edge.name)
            if draft is None:
                return None if edge.name in self.around.open_inputs else self._of_input(edge)
            if not draft.is_off:
                break
            first = first_key(draft.ports)
            behind = None if first is None else self.edges[draft.name].get(first)
            if behind is None or draft.name in seen:
                return None
            seen.add(draft.name)
            edge = behind
        output = edge.output or draft.outputs[0]
        if draft.num_copies is None:
            return f"{draft.name}:{output}"
        copy = draft.num_copies - 1 if edge.copy is None else edge.copy
        return f"{draft.name}.{copy}:{output}"

    def _of_input(self, edge: Edge) -> Wire:
        outputs = self.around.field_outputs.get(edge.name, ())
        return edge.name if edge.output in (None, *outputs[:1]) else f"{edge.name}.{edge.output}"

    # -- the graph as a whole

    def _sort(self) -> list[NodeDraft]:
        done: dict[str, bool] = {}  # node -> False while its predecessors are visited, then True
        order: list[NodeDraft] = []
        behind = self._list_predecessors()
        for name in self.drafts:
            stack = [(name, iter(behind[name]))] if name not in done else []
            if stack:
                done[name] = False
            while stack:
                current, below = stack[-1]
                following = next(below, None)
                if following is None:
                    done[current] = True
                    order.append(self.drafts[current])
                    stack.pop()
                elif following not in done:
                    done[following] = False
                    stack.append((following, iter(behind[following])))
                elif not done[following]:
                    self._report_cycle([each for each, _ in stack], following)
        return order if not self.has_cycle else list(self.drafts.values())

    def _list_predecessors(self) -> dict[str, list[str]]:
        """Return {node: nodes that must come before it}: the nodes that it reads. A `reuse` node must also come after
        the node that it calls again, unless this would make a cycle."""
        behind = {name: list(self._reads[name]) for name in self.drafts}
        for draft in self._reuses():
            waiting, reached = [draft.target.name], {draft.target.name}
            while waiting:
                new = set(behind[waiting.pop()]) - reached
                reached |= new
                waiting += new
            if draft.name not in reached:
                behind[draft.name].append(draft.target.name)
        return behind

    def _report_cycle(self, stack: list[str], back_to: str) -> None:
        way = [*stack[stack.index(back_to) :], back_to]
        places = [self._reads[reader][read] for reader, read in pairwise(way)]
        self.has_cycle = True
        self.diagnostics.append(cycle(places[0], way, places))

    def find_dead(self, used: Collection[str], readers: str) -> tuple[set[str], list[Diagnostic]]:
        """Return the names of the unused nodes, and a diagnostic for each of them that no other node reads. `used`:
        names of nodes that are read from outside the graph; all nodes on which they depend are used too. `readers`:
        words for messages: what could read a node from outside.

        There is no diagnostic for a switched-off node and for nodes on which it depends, because another copy of the
        block may use them.
        """
        if not self.knows_all_readers:
            return set(), []
        needed = {name for name in used if name in self.drafts}
        waiting = list(needed)
        excused: set[str] = set()
        while waiting:
            name = waiting.pop()
            reads = set(self._reads[name])
            draft = self.drafts[name]
            if draft.is_off:
                first = first_key(draft.ports)
                edge = None if first is None else self.edges[name].get(first)
                kept = {edge.name} if edge is not None else set()
                excused |= reads - kept
                reads &= kept
            waiting += reads - needed
            needed |= reads
        excused |= {name for name, draft in self.drafts.items() if draft.is_off}
        growing = list(excused)
        while growing:
            reads = set(self._reads.get(growing.pop(), ())) - excused
            excused |= reads
            growing += reads
        unused = set(self.drafts) - needed
        said = [
            dead_node(draft.entry.key.span, name, readers)
            for name, draft in self.drafts.items()
            if name in unused - excused and not self._read_by[name] and not isinstance(draft, BrokenDraft)
        ]
        return unused, said
