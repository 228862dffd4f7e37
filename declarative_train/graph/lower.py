"""Lowering of a recipe to two graphs, and to checked losses and metrics. One graph is the model. The other has the
nodes that depend on fields alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.graph.check_objective import Measure, ObjectiveCheck, Term, measures_of, names_read, terms_of
from declarative_train.graph.checks.objective import no_parameters
from declarative_train.graph.chunked import head_of
from declarative_train.graph.evaluate_fields import ObservedValues, Observer
from declarative_train.graph.graph import Graph, above
from declarative_train.graph.infer import Inference, NodeFact, WireOrigin
from declarative_train.graph.partition import split_batch_graph
from declarative_train.recipe.model.tree import Scope
from declarative_train.recipe.recipe import Recipe

if TYPE_CHECKING:
    from declarative_train.data.shared_sets import Sample


@dataclass(frozen=True, slots=True)
class Lowered:
    """Result of lowering a recipe to graphs.

    batch_graph  nodes that are computed from fields alone
    graph        the model
    terms        losses
    measures     metrics
    sources      dict from a tensor that a loss or metric reads to its name in the batch or the outputs of `graph`
    specs        dict from a tensor that a loss or metric reads to its spec
    parameters   dict from parameter to its shape, in the order of the graph
    maps         dict from the path of a linear map, which may have an adapter, to (out, in)
    tables       weights of linear maps and embeddings, which can be stored in fewer bits
    facts        properties of nodes, such as that a node draws random numbers
    units        paths of the modules that are sharded, recomputed and compiled one by one"""

    batch_graph: Graph
    graph: Graph
    terms: tuple[Term, ...]
    measures: tuple[Measure, ...]
    sources: Mapping[str, str]
    specs: Mapping[str, TensorSpec]
    parameters: Mapping[str, tuple[int, ...]]
    maps: Mapping[str, tuple[int, int]]
    tables: frozenset[str]
    facts: tuple[NodeFact, ...]
    units: tuple[str, ...]

    @property
    def heads(self) -> frozenset[str]:
        """Paths of the linear layers whose output is read by a loss with `chunks`. Their forward is repeated in the
        backward."""
        chunked = [term.edges.input for term in self.terms if getattr(term.component, "chunks", None) is not None]
        return frozenset(head_of(self.graph, self.graph.outputs[name]) for name in chunked)


def lower(
    recipe: Recipe, fields: Mapping[str, TensorSpec], sample: Sample | None = None
) -> tuple[Lowered | None, list[Diagnostic]]:
    """Lower a recipe. Return (result, diagnostics); the result is None if there is an error. `fields`: spec of each
    field. `sample`: real rows, on which nodes that depend on fields alone are evaluated.

    In the graph, the dtype float32 stands for the precision of the training. So with `precision: fp64`, float64 fields
    are float32 in the graph, and the ranks convert fields and model to float64."""
    precision = recipe.training.precision.compute
    if precision == "fp64":
        fields = {name: _working(spec) for name, spec in fields.items()}
    scope = recipe.model.scope
    terms, measures = terms_of(recipe), measures_of(recipe)
    wires = {name: scope.outputs.get(name, name) for name in names_read(terms, measures)}
    observer = Observer(sample, precision == "fp64")
    inference = Inference(precision, observer=observer, rules=recipe.model.rules, model=scope)
    inputs = {name: fields[name] for name in scope.inputs if name in fields}
    inputs |= {wire: fields[wire] for wire in wires.values() if wire in fields}
    origins = {name: WireOrigin(name, recipe.key_span(f"data.fields.{name}")) for name in inputs}
    fetched: dict[str, ObservedValues | None] = {}

    def see_input(name: str) -> ObservedValues | None:
        if name not in fetched:
            fetched[name] = observer.field(name, inputs[name]) if name in inputs else None
        return fetched[name]

    with torch.random.fork_rng(devices=[]):
        graph, known, see = inference.scope(scope._replace(outputs=wires), inputs, origins, see_input=see_input)
    measures = tuple(each.with_task(known.get(each.edges.target or "")) for each in measures)
    origins |= {name: _origin(scope, wire) for name, wire in wires.items() if ":" in wire}
    check = ObjectiveCheck(recipe, known, origins, observer, lambda name: see(wires[name]))
    fitting = [term for term in terms if check.fits(term)]
    refused = {term.edges for term in terms if term not in fitting}
    for measure in measures:
        if measure.edges not in refused:  # else the error of the loss was reported
            check.fits(measure)
    diagnostics = inference.diagnostics + check.diagnostics
    if graph is None:
        return None, diagnostics
    if not inference.parameters:
        diagnostics.append(no_parameters(recipe.key_span("model.graph")))
        return None, diagnostics
    drawn = [fact for fact in inference.facts if fact.kind == "random" and fact.layer is None]
    bound = {*inference.parameters, *(fact.path for fact in inference.facts if fact not in drawn)}
    batch_graph, model = split_batch_graph(graph, bound)
    ahead = {node.name for node in batch_graph.nodes}
    facts = tuple(fact for fact in inference.facts if fact not in drawn or not ahead & {fact.path, *above([fact.path])})
    sources = {name: name if name in model.outputs else _batch_name(batch_graph, wire) for name, wire in wires.items()}
    check.diagnostics.clear()
    for term in fitting:
        check.check_sources(term, set(wires) - set(model.outputs), _find_learned(model, inference.parameters))
        check.check_values(term)
        check.check_chunks(term, model, terms, measures)
    for edge in {batch_graph.outputs[name] for name in model.inputs if name in batch_graph.outputs}:
        check.check_finite(see(edge))
    diagnostics += check.diagnostics
    if any(item.is_error for item in diagnostics):
        return None, diagnostics
    specs = {name: spec for name, spec in known.items() if spec is not None}
    modules = set(_modules(model))
    known_units = (path for path in scope.units if path in modules)
    units = tuple(inner for path in known_units for inner in inference.units.get(path) or (path,))
    parameters, maps = inference.parameters, inference.maps
    tables = frozenset(inference.tables)
    lowered = Lowered(batch_graph, model, terms, measures, sources, specs, parameters, maps, tables, facts, units)
    return lowered, diagnostics


def _working(spec: TensorSpec) -> TensorSpec:
    return replace(spec, dtype="float32") if spec.dtype == "float64" else spec


def _origin(scope: Scope, wire: str) -> WireOrigin:
    node = next(node for node in scope.nodes if node.name == wire.partition(":")[0])
    return WireOrigin(node.path, node.key_span)


def _batch_name(batch_graph: Graph, wire: str) -> str:
    """Return the name under which a batch has the value `wire` of the model's graph: the name of the output of
    `batch_graph` that has this value, otherwise the name of a field. `batch_graph`: graph of the nodes that are
    computed from fields alone."""
    return next((name for name, edge in batch_graph.outputs.items() if edge == wire), wire)


def _find_learned(model: Graph, parameters: Collection[str]) -> set[str]:
    """Return the names of the model's outputs that depend on a parameter."""
    touched: set[str] = set()
    holders = above(parameters)
    for node in model.nodes:
        holder = node.target or node.name
        if holder in holders or touched.intersection(node.inputs.values()):
            touched |= {f"{node.name}:{output}" for output in node.outputs}
    return {name for name, edge in model.outputs.items() if edge in touched}


def _modules(graph: Graph) -> Iterator[str]:
    """Yield the paths of the nodes that have a module of their own: layers and blocks. Expressions and second calls of
    a module (`reuse`) have none."""
    for node in graph.nodes:
        if node.kind in ("layer", "block"):
            yield node.name
        if node.graph is not None:
            yield from (f"{node.name}.{path}" for path in _modules(node.graph))
