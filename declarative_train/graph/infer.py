"""Shape inference: it turns a `Scope` (a model or block of the recipe) into a `Graph`, and finds shape, dtype and range
(a TensorSpec) of every edge, node by node.

A node whose inputs are unknown because of an earlier error is skipped without a message. Equal layers with equal inputs
are run only once, so all copies of a `repeat` cost as much as one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from keyword import iskeyword
from typing import Literal

from declarative_train.components.adapters.adapted import Adapted, with_added
from declarative_train.components.component import Layer, ShapeError
from declarative_train.components.expressions.dtypes import fill_num_classes
from declarative_train.components.expressions.grammar import Expression, parse
from declarative_train.components.expressions.tree import ExpressionError
from declarative_train.components.layers.moe import Moe
from declarative_train.components.plugin_layer import PluginLayer
from declarative_train.core.diagnostics.diagnostic import Diagnostic, Related
from declarative_train.core.span import Span
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.graph.adapting import Adapting
from declarative_train.graph.checks.shapes import CODE as LAYER_REFUSED
from declarative_train.graph.checks.shapes import (
    batch_moved,
    double_precision,
    expression_does_not_fit,
    inputs_do_not_fit,
    layer_refused,
    name_of_python,
    reuse_before_target,
    reuse_does_not_fit,
    shapes_unknown,
)
from declarative_train.graph.evaluate_fields import ObservedValues, Observer, narrow
from declarative_train.graph.graph import Edge, Graph, Node
from declarative_train.graph.inspect_plugin import Habits
from declarative_train.graph.probe import BatchMovedError, Probed, RefusedError, probe_expression, probe_layer
from declarative_train.recipe.model.selectors import ParameterRule
from declarative_train.recipe.model.tree import BlockNode, ExpressionNode, LayerNode, ModelNode, ReuseNode, Scope

Specs = Mapping[str, TensorSpec]


@dataclass(frozen=True, slots=True)
class WireOrigin:
    """Origin of a wire (a value in the model graph), for messages: the node or field that computes it, and the place of
    this node or field in the recipe."""

    name: str
    span: Span


@dataclass(frozen=True, slots=True)
class NodeFact:
    """Property of a node that the plan must report.

    kind    the property, for example "random": the node draws random numbers
    habits  behaviour of the layer, if it is a plugin's
    shape   shape of the node's first input"""

    path: str
    kind: Literal["random", "mixes_samples", "statistics", "plugin"]
    span: Span
    layer: Layer | None = None
    field_spans: Mapping[str, Span] = field(default_factory=dict)
    habits: Habits | None = None
    shape: tuple[int, ...] = ()


@dataclass(slots=True)
class _Scope:
    """State of the inference of one scope (the model or a block): specs and sample values of its wires, and the nodes
    that are finished."""

    scope: Scope
    known: dict[Edge, TensorSpec | None]
    origins: dict[Edge, WireOrigin]
    first_call: Graph | None
    see_input: Callable[[Edge], ObservedValues | None]
    """Returns the values of an input on real rows, if they are known."""
    seen: dict[Edge, ObservedValues] = field(default_factory=dict)
    done: dict[str, Node | None] = field(default_factory=dict)

    def see(self, edge: Edge) -> ObservedValues | None:
        return self.seen.get(edge) if ":" in edge else self.see_input(edge)

    def all_seen(self, inputs: Mapping[str, Edge]) -> dict[str, ObservedValues] | None:
        """Return the values of a node's inputs on sample rows, by port; None if the values of an input are unknown, for
        example because a layer with parameters computes them."""
        if any(":" in edge and edge not in self.seen for edge in inputs.values()):
            return None
        found = {port: seen for port, edge in inputs.items() if (seen := self.see(edge)) is not None}
        return found if len(found) == len(inputs) else None

    def connections(self, node: ModelNode) -> dict[str, Edge]:
        """Return {port: edge} for the connected inputs of a node. (A block may have optional inputs that are not
        connected.)"""
        return {port: wire for port, wire in node.inputs.items() if wire in self.known}

    def specs(self, inputs: Mapping[str, Edge]) -> dict[str, TensorSpec] | None:
        """Return {port: spec} for the inputs of a node. `inputs`: {port: edge}. Return None if one of the specs is
        unknown."""
        found = {port: spec for port, wire in inputs.items() if (spec := self.known[wire]) is not None}
        return found if len(found) == len(inputs) else None

    def find_origins(self, inputs: Mapping[str, Edge]) -> dict[str, WireOrigin]:
        return {port: self.origins[wire] for port, wire in inputs.items()}

    def specs_built_for(self, name: str) -> dict[str, TensorSpec]:
        """Return {port: spec} of the inputs for which the module of node `name` was built. Several calls of a block
        share one module, which was built for the inputs of the first call."""
        node = self.done[name] if self.first_call is None else self.first_call.node(name)
        assert node is not None
        specs = {
            port: self.first_call.spec(edge) if self.first_call else self.known[edge]
            for port, edge in node.inputs.items()
        }
        return {port: spec for port, spec in specs.items() if spec is not None}

    def settle(self, node: ModelNode, found: Node | None) -> None:
        self.done[node.name] = found
        for output in _output_names(node, self.scope):
            self.known[f"{node.name}:{output}"] = None if found is None else found.outputs.get(output)
            self.origins[f"{node.name}:{output}"] = WireOrigin(node.path, node.key_span)


class Inference:
    """Shape inference of a model. It collects diagnostics, the shapes of parameters, and facts about nodes."""

    def __init__(
        self,
        precision: str = "fp32",
        probes: dict[tuple[object, ...], Probed] | None = None,
        observer: Observer | None = None,
        rules: Sequence[ParameterRule] = (),
        model: Scope | None = None,
    ) -> None:
        """Prepare the shape inference of a model. `precision`: precision of the training, for messages. `probes`: cache
        of the results of running layers. `observer`: evaluates nodes on sample rows. `rules`: parameter rules, which
        may add adapters to layers. `model`: scope of the whole model, needed for adapters that are read from a
        folder."""
        self._observer = observer or Observer(None)
        self.diagnostics: list[Diagnostic] = []
        self.parameters: dict[str, tuple[int, ...]] = {}
        self.facts: list[NodeFact] = []
        self.maps: dict[str, tuple[int, int]] = {}  # the linear maps of the model, adapted or not: (out, in)
        self.tables: list[str] = []  # names of weights that can be stored in fewer bits
        self._adapting = Adapting(rules, model)
        self.units: dict[str, tuple[str, ...]] = {}  # paths of the units inside a node
        self._precision = precision
        self._unknown: set[str] = set()  # types of plugins whose shapes are unknown, each reported once
        self._probes = {} if probes is None else probes
        self._results: dict[
            tuple[object, ...], TensorSpec
        ] = {}  # specs of expressions; copies of a block have the same

    def scope(
        self,
        scope: Scope,
        inputs: Mapping[str, TensorSpec | None],
        origins: Mapping[str, WireOrigin],
        first_call: Graph | None = None,
        see_input: Callable[[Edge], ObservedValues | None] = lambda edge: None,
    ) -> tuple[Graph | None, dict[str, TensorSpec | None], Callable[[Edge], ObservedValues | None]]:
        """Infer the nodes of a scope (the model or a block). Return (graph, {output: spec}, function). The function
        takes an edge, and returns its values on sample rows or None. The graph is None if anything in it is unknown.

        `inputs`      spec of each connected input; None: unknown
        `first_call`  if the scope is a block that is called again: graph of the first call, whose layer sizes are kept
        `see_input`   function from an input to its values on sample rows
        """
        state = _Scope(scope, dict(inputs), dict(origins), first_call, see_input)
        for node in scope.nodes:
            state.settle(node, self._node(node, state))
        outputs = {name: state.known.get(wire) for name, wire in scope.outputs.items()}
        nodes = [node for node in state.done.values() if node is not None]
        if len(nodes) < len(scope.nodes) or None in outputs.values():
            return None, outputs, state.see
        certain = {name: spec for name, spec in inputs.items() if spec is not None}
        return Graph(certain, tuple(nodes), dict(scope.outputs)), outputs, state.see

    def _report(self, diagnostic: Diagnostic) -> None:
        """Add a diagnostic, if there is none with the same code and place. (All copies of a block have the same
        errors.)"""
        if not any((item.code, item.span) == (diagnostic.code, diagnostic.span) for item in self.diagnostics):
            self.diagnostics.append(diagnostic)

    def _find_related(self, specs: Specs, made_by: Mapping[str, WireOrigin]) -> tuple[Related, ...]:
        """Return notes for an error message about the inputs of a node: for each input, the node or field that computes
        it, and its shape."""
        return tuple(
            Related(made_by[port].span, f"`{made_by[port].name}` gives {spec.describe(self._precision)}")
            for port, spec in specs.items()
            if port in made_by
        )

    def _node(self, node: ModelNode, state: _Scope) -> Node | None:
        if state.first_call is None and iskeyword(node.name.partition(".")[0]):
            self._report(name_of_python(node.key_span, node.name))
            return None
        if isinstance(node, BlockNode):
            return self._block(node, state)
        inputs = state.connections(node)
        specs = state.specs(inputs)
        if specs is None:
            return None
        if isinstance(node, ReuseNode):
            return self._reuse(node, inputs, specs, state)
        made_by = state.find_origins(inputs)
        if isinstance(node, LayerNode):
            built_for = None if state.first_call is None else state.specs_built_for(node.name)
            return self._layer(node, inputs, specs, made_by, built_for, state)
        return self._expression(node, inputs, specs, made_by, state)

    def _layer(
        self,
        node: LayerNode,
        inputs: dict[str, Edge],
        specs: Specs,
        made_by: Mapping[str, WireOrigin],
        built_for: Specs | None = None,
        state: _Scope | None = None,
    ) -> Node | None:
        layer = node.layer if built_for is None else node.layer.with_sizes(built_for)
        if isinstance(layer, PluginLayer) and not layer.may_import:
            if layer.type not in self._unknown:
                self._report(shapes_unknown(node.span, layer.type))
            self._unknown.add(layer.type)
            return None
        whole = (
            {}
            if state is None
            else {port: state.see(edge) for port, edge in inputs.items() if _is_integer(specs[port])}
        )
        shape_error, rows = self._observer.check(layer.check, specs, whole)
        if shape_error is not None:
            said = _with_param_name(node, shape_error)
            related = [Related(node.input_spans.get(port, node.span), row) for port, row in rows.items()]
            self._report(
                inputs_do_not_fit(_place(node, shape_error), said, (*self._find_related(specs, made_by), *related))
            )
            if not shape_error.is_warning:
                return None
        try:
            probed = self._probe(layer, specs, built_for or specs)
        except RefusedError as problem:
            made = self._find_related(specs, made_by)
            self._report(layer_refused(node.span, layer.type, specs, str(problem), made, self._precision))
            return None
        except BatchMovedError as problem:
            self._report(batch_moved(node.span, node.name, str(problem)))
            return None
        double = next((port for port, spec in specs.items() if spec.dtype == "float64"), None)
        if double is not None and probed.parameters and not layer.counts_only:
            span = node.input_spans.get(double, node.span)
            made = self._find_related({double: specs[double]}, made_by)
            self._report(double_precision(span, layer.type, double, self._precision, made))
            return None
        adapters = self._adapting.of(node.path, probed.maps, self._report)
        if adapters:
            layer = Adapted.of(layer, adapters)
        if built_for is None:
            shapes = with_added(probed.parameters, adapters, probed.maps)
            self.parameters |= {f"{node.path}.{name}": shape for name, shape in shapes.items()}
            self.maps |= {_join(node.path, path): shape for path, shape in probed.maps.items()}
            self.tables += [f"{node.path}.{name}" for name in probed.tables]
            self.units[node.path] = tuple(_join(node.path, path) for path in probed.units)
            self._note(replace(node, layer=layer), probed.habits, specs)
        outputs = dict(zip(layer.outputs, probed.outputs, strict=True))
        if state is not None and not probed.parameters and len(outputs) == 1:
            given = state.all_seen(inputs)
            (name,) = outputs
            seen = given and self._observer.layer(layer, given, specs, outputs[name], node.span)
            if seen:
                state.seen[f"{node.name}:{name}"] = seen
        return Node(node.name, "layer", inputs, outputs, component=layer.as_data())

    def _probe(self, layer: Layer, inputs: Specs, built_for: Specs) -> Probed:
        key = (type(layer), repr(layer), tuple(inputs.items()), tuple(built_for.items()))
        if key not in self._probes:
            self._probes[key] = probe_layer(layer, inputs, built_for)
        return self._probes[key]

    def _note(self, node: LayerNode, habits: Habits | None, specs: Specs) -> None:
        kinds: dict[Literal["random", "mixes_samples", "statistics", "plugin"], bool] = {
            "plugin": habits is not None,
            "random": node.layer.is_random if habits is None else habits.draws is not False,
            "mixes_samples": node.layer.mixes_samples,
            "statistics": isinstance(node.layer, Moe) and node.layer.bias_rate is not None,
        }
        shape = next((spec.shape for spec in specs.values()), ())
        for kind, holds in kinds.items():
            if holds:
                self.facts.append(NodeFact(node.path, kind, node.span, node.layer, node.field_spans, habits, shape))

    def _expression(
        self,
        node: ExpressionNode,
        inputs: dict[str, Edge],
        specs: Specs,
        made_by: Mapping[str, WireOrigin],
        state: _Scope,
    ) -> Node | None:
        try:
            expression = self._fix_sizes(node, inputs, specs, state)
            key = (expression.text, expression is node.expression, *specs.items())
            found = self._results.get(key) or probe_expression(expression, specs)
            if expression is node.expression:  # otherwise the text has sizes of this call
                self._results[key] = found
            given = None if node.expression.is_random else state.all_seen(inputs)
            seen = given and self._observer.expression(expression, given, found, node.span)
            if seen:
                state.seen[f"{node.name}:output"] = seen
        except ExpressionError as problem:
            span = node.place(problem.offset, problem.length)
            made = self._find_related(specs, made_by)
            self._report(expression_does_not_fit(span, problem.message, problem.help, made))
            return None
        except BatchMovedError as problem:
            self._report(batch_moved(node.span, node.name, str(problem)))
            return None
        if node.expression.is_random:
            self.facts.append(NodeFact(node.path, "random", node.span))
        return Node(node.name, "expression", inputs, {"output": found}, expression=expression.text)

    def _fix_sizes(self, node: ExpressionNode, inputs: dict[str, Edge], specs: Specs, state: _Scope) -> Expression:
        if "one_hot" not in node.expression.operations:
            return node.expression
        seen = state.all_seen(inputs) or {}
        occurring = {name: narrow(spec, seen.get(name)) for name, spec in specs.items()}
        found = fill_num_classes(node.expression, specs, occurring)
        if state.first_call is None or found is node.expression:
            return found
        return parse(str(state.first_call.node(node.name).expression))  # called again: with the sizes of the first call

    def _block(self, node: BlockNode, state: _Scope) -> Node | None:
        """Infer the specs of the nodes in a block, and return the block's node; None if a spec is unknown. If an input
        of the block is unknown, the nodes that do not depend on it are checked all the same."""
        inputs = state.connections(node)
        body = None if state.first_call is None else state.first_call.node(node.name).graph
        arriving = {name: state.known[wire] for name, wire in inputs.items()}
        graph, outputs, see = self.scope(
            node.scope, arriving, state.find_origins(inputs), body, lambda name: state.see(inputs[name])
        )
        if graph is None:
            return None
        for output, wire in node.scope.outputs.items():
            if ":" in wire and (seen := see(wire)) is not None:
                state.seen[f"{node.name}:{output}"] = seen
        specs = {name: spec for name, spec in outputs.items() if spec is not None}
        return Node(node.name, "block", inputs, specs, block=node.block, graph=graph)

    def _reuse(self, node: ReuseNode, inputs: dict[str, Edge], specs: Specs, state: _Scope) -> Node | None:
        """Infer the shapes of a `reuse` node, which calls the module of another node again. Return the node, or None
        after an error, for example if the inputs do not have the sizes for which the module was built."""
        target, origin = state.done.get(node.target), _find_node(state.scope, node.target)
        if target is None:
            if node.target not in state.done:  # it comes later in the recipe
                self._report(reuse_before_target(node.span, node.name, node.target, origin.key_span))
            return None
        built_for = state.specs_built_for(node.target)
        again = Inference(self._precision, self._probes)
        outputs: Mapping[str, TensorSpec | None] = {}
        if set(specs) == set(built_for) and isinstance(origin, BlockNode):
            made_by = {name: WireOrigin(node.path, node.key_span) for name in specs}
            _, outputs, _ = again.scope(origin.scope, dict(specs), made_by, target.graph)
        elif set(specs) == set(built_for) and isinstance(origin, LayerNode):
            found = again._layer(origin, dict(inputs), specs, {}, built_for)
            outputs = {} if found is None else found.outputs
        certain = {name: spec for name, spec in outputs.items() if spec is not None}
        if certain and len(certain) == len(outputs):
            return Node(node.name, "reuse", inputs, certain, target=node.target)
        own = (
            item.message for item in again.diagnostics if item.code != LAYER_REFUSED
        )  # `reuse_does_not_fit` names only the shapes
        problem = next(own, None)
        self._report(reuse_does_not_fit(node.span, node.target, origin.key_span, specs, built_for, problem))
        return None


def _is_integer(spec: TensorSpec) -> bool:
    """Return whether a tensor has an integer dtype, so that its values may be indices or counts."""
    return not spec.is_floating and spec.dtype != "bool"


def _find_node(scope: Scope, name: str) -> ModelNode:
    return next(node for node in scope.nodes if node.name == name)


def _output_names(node: ModelNode, scope: Scope) -> Iterable[str]:
    if isinstance(node, LayerNode):
        return node.layer.outputs
    if isinstance(node, BlockNode):
        return node.scope.outputs
    return ("output",) if isinstance(node, ExpressionNode) else _output_names(_find_node(scope, node.target), scope)


def _join(path: str, inner: str) -> str:
    return f"{path}.{inner}" if inner else path


def _with_param_name(node: LayerNode, shape_error: ShapeError) -> ShapeError:
    """Return the shape error in the user's words: a key of the layer that a param of the block sets is replaced by the
    name of the param."""
    param = node.params.get(shape_error.field or "")
    if param is None:
        return shape_error

    def rename(text: str) -> str:
        return re.sub(rf"`{shape_error.field}(?=[`:])", f"`{param}", text)

    # only the first way of the hint: a second one may name a key that the block does not have
    hint = shape_error.help and rename(shape_error.help).partition(", or ")[0]
    return shape_error._replace(message=rename(shape_error.message), help=hint)


def _place(node: LayerNode, shape_error: ShapeError) -> Span:
    """Return the place in the recipe at which to report a layer's shape error: the key or input that the error names,
    or else the whole node."""
    if shape_error.field is not None:
        parts = shape_error.field.split(".")
        ways = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
        return next((node.field_spans[way] for way in ways if way in node.field_spans), node.span)
    return node.input_spans.get(shape_error.port, node.span) if shape_error.port is not None else node.span
