"""Dry run: one training step and one evaluation step of the model, while the recipe is compiled.

It finds errors that appear only when all parts are combined, and parameters that no loss depends on. A small model
computes real rows. A large one is only traced on the meta device, if some parameter may have no gradient. Backward is
never called: on a machine with a GPU it would start threads, after which the process must not be forked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from math import isfinite, prod
from typing import Any

import torch
from torch import nn

from declarative_train.components.component import Collective, MetricInputs
from declarative_train.components.expressions.functions import WITHOUT_GRADIENT
from declarative_train.components.expressions.grammar import parse
from declarative_train.components.expressions.lower import infer as evaluate
from declarative_train.components.layers import LAYERS
from declarative_train.graph.build import build, call_order
from declarative_train.graph.check_objective import Measure
from declarative_train.graph.check_objective import Term as LossTerm
from declarative_train.graph.cost import activations
from declarative_train.graph.graph import Edge, Graph, Node
from declarative_train.graph.initialise import Start, initialise
from declarative_train.graph.lower import Lowered
from declarative_train.graph.probe import without_memory
from declarative_train.graph.read import is_library

SMALL_PARAMETERS = 1 << 21
"""Largest number of parameter elements of a model that is built with its start values."""
SMALL_WORK = 1 << 22
"""Largest number of elements that the nodes may output for the rows of the dry run."""
ROWS, EXTREMES = 4, 12
"""Number of rows in the dry run: the first ones, and up to the second number if a field has an extreme value there."""

Values = Mapping[str, torch.Tensor]
_FLAT = frozenset({"CeilBackward0", "FloorBackward0", "RoundBackward0", "RoundBackward1", "SignBackward0"})
"""Names of autograd nodes whose derivative is zero everywhere."""
_UNDERIVABLE = "torch::autograd::NotImplemented"  # name of the grad_fn of a function without derivative, such as `//`


@dataclass(slots=True)
class DryRunResult:
    """Result of a dry run.

    idle         parameters that no loss term depends on
    sides        dict from a loss term whose target depends on a parameter to (parameters of its input, of its target)
    unreached    loss terms that depend on no parameter
    underivable  loss terms with a function that torch cannot differentiate
    not_finite   dict from a loss term to its first value, if that is nan or infinite
    failure      (phase that failed: training or evaluation, first line of the error), or None
    culprit      path of the first node that fails, or that outputs nan or an infinite number"""

    idle: frozenset[str] = frozenset()
    sides: dict[str, tuple[frozenset[str], frozenset[str]]] = field(default_factory=dict)
    unreached: tuple[str, ...] = ()
    underivable: tuple[str, ...] = ()
    not_finite: dict[str, float] = field(default_factory=dict)
    failure: tuple[str, str] | None = None
    culprit: str | None = None


def run_dry(
    lowered: Lowered,
    parameters: Sequence[Start],
    plugins: Sequence[str],
    seed: int,
    rows: Values | None,
    *,
    double: bool = False,
) -> DryRunResult:
    """Compute one training step and one evaluation step of the model, and return the problems found. A large model is
    only traced, without values. `rows`: a few real samples by field, or None. `double`: compute in float64."""
    is_small = rows is not None and _is_small(lowered)
    if not is_small and not _may_have_idle(lowered):
        return DryRunResult()
    with _without_side_effects(double):
        ties = {item.name: item.tie for item in parameters if item.tie is not None}
        model = build(lowered.graph, plugins, seed=seed, ties=ties, device=None if is_small else "meta")
        if double:
            model.double()
        step = _Step(lowered, model, plugins, double)
        if not is_small or rows is None:
            return step.on_meta() if not _has_library(lowered.graph) else step.without_memory()
        torch.manual_seed(seed)
        initialise(model, lowered.graph, parameters, seed, plugins)
        return step.on(rows)


def fails_at(lowered: Lowered, plugins: Sequence[str], seed: int, other: Graph) -> str | None:
    """Check that the model of `lowered` also runs on inputs of other shapes, such as those of a shorter length bucket.
    Return the error, or the first output with a wrong shape; None if there is neither. `other`: graph of the model for
    these shapes. The model is run on two samples of zeros."""
    is_small = _is_small(lowered)
    with _without_side_effects(double=False):
        model = build(lowered.graph, plugins, seed=seed, device=None if is_small else "meta").eval()
        with nullcontext() if is_small else without_memory(model), torch.no_grad():
            rows = [
                torch.zeros((2, *spec.shape), dtype=getattr(torch, spec.dtype), device="cpu")
                for spec in other.inputs.values()
            ]
            try:
                made = model(*rows)
            except Exception as error:  # errors of torch and of plugins are shown to the user
                return _first_line(error)
    for value, (name, edge) in zip(made, other.outputs.items(), strict=True):
        if tuple(value.shape[1:]) != other.spec(edge).shape:
            return f"`{name}` is of shape {tuple(value.shape[1:])} in place of {other.spec(edge).shape}"
    return None


class _Step:
    def __init__(self, lowered: Lowered, model: nn.Module, plugins: Sequence[str], double: bool) -> None:
        self.lowered, self.model, self.plugins, self.double = lowered, model, plugins, double
        self.found = DryRunResult()

    def on_meta(self) -> DryRunResult:
        specs = self.lowered.graph.inputs
        rows = {
            name: torch.empty((2, *spec.shape), dtype=self._dtype(spec.dtype), device="meta")
            for name, spec in specs.items()
        }
        try:
            self._find_reached(self._outputs(rows))
        except Exception as error:  # errors of torch and of plugins are shown to the user
            self.found.failure = ("training", _first_line(error))
        return self.found

    def without_memory(self) -> DryRunResult:
        """Trace the step on fake CPU tensors, which have no memory, and return the problems found. The result is empty
        if the model cannot be traced. (Meta tensors would not do: models of libraries read the values of tensors.)"""
        with without_memory(self.model):
            specs = self.lowered.graph.inputs
            rows = {
                name: torch.zeros((2, *spec.shape), dtype=self._dtype(spec.dtype), device="cpu")
                for name, spec in specs.items()
            }
            with suppress(Exception):
                self._find_reached(self._outputs(rows))
        return self.found

    def on(self, rows: Values) -> DryRunResult:
        phase = "training"
        values: dict[str, torch.Tensor] = {}
        try:
            values = self._make_batch(rows)
            values |= self._outputs(values)
            self._find_reached(values)
            self._losses(values)
            phase = "evaluation"
            self.model.eval()
            with torch.no_grad():
                seen = values | self._outputs(values)
                for measure in self.lowered.measures:
                    self._measure(measure, seen)
        except Exception as error:
            self.found.failure = (phase, _first_line(error))
        if self.found.failure is not None or self.found.not_finite:
            self.found.culprit = self._find_culprit(values)
        return self.found

    def _dtype(self, name: str) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, name)
        return torch.float64 if self.double and dtype.is_floating_point else dtype

    def _make_batch(self, rows: Values) -> dict[str, torch.Tensor]:
        """Return the batch of the step by name: the values `rows` of the fields, and the values that are computed from
        fields alone."""
        values = {name: item.to(self._dtype(str(item.dtype).partition(".")[2])) for name, item in rows.items()}
        graph = self.lowered.batch_graph
        if graph.nodes:
            made = build(graph, self.plugins).eval()(*[values[name] for name in graph.inputs])
            values.update(zip(graph.outputs, made, strict=True))
        return values | {name: values[key] for name, key in self.lowered.sources.items() if key in values}

    def _outputs(self, values: Values) -> dict[str, torch.Tensor]:
        graph = self.lowered.graph
        return dict(zip(graph.outputs, self.model(*[values[name] for name in graph.inputs]), strict=True))

    def _find_reached(self, values: Values) -> None:
        names = {id(item): name for name, item in self.model.named_parameters()}
        reached: set[str] = set()
        for term in self.lowered.terms:
            ends = [values[name] for name in _read_by(term) if name in values]
            leaves, is_derivable = _find_leaves([end for end in ends if end.requires_grad])
            own = {names[leaf] for leaf in leaves if leaf in names}
            target = values.get(term.edges.target or "")
            if target is not None and target.requires_grad:
                sides = [
                    {} if not end.requires_grad else _find_leaves([end])[0]
                    for end in (values[term.edges.input], target)
                ]
                self.found.sides[term.name] = tuple(  # type: ignore[assignment]
                    frozenset(names[leaf] for leaf in side if leaf in names) for side in sides
                )
            if not own:
                self.found.unreached += (term.name,)
            if not is_derivable:
                self.found.underivable += (term.name,)
            reached |= own
        self.found.idle = frozenset(names.values()) - reached

    def _losses(self, values: Values) -> None:
        for term in self.lowered.terms:
            if not term.component.needs_balance:
                module = term.component.build(*self._specs(term.edges.input, term.edges.target, term.edges.mask))
                judged, target, mask = _gather(term, values)
                total = float(module.sum(judged, target, mask, None).detach())
                if not isfinite(total):
                    self.found.not_finite[term.name] = total

    def _measure(self, measure: Measure, values: Values) -> None:
        judged, target, mask = self._specs(measure.edges.input, measure.edges.target, measure.edges.mask)
        edges = MetricInputs(judged, target, mask, measure.class_dim, measure.ignore_index)
        metric = measure.component.build(edges, torch.device("cpu"))
        read, wanted, mask = _gather(measure, values)
        metric.update(read, wanted, mask, None)
        metric.compute(_SingleRank())

    def _specs(self, *names: str | None) -> Any:
        return [None if name is None else self.lowered.specs[name] for name in names]

    def _find_culprit(self, values: Values) -> str | None:
        """Run the model node by node. Return the path of the first node that fails, or that has finite inputs and an
        output that is not finite. Return None if no node does."""
        torch.manual_seed(0)
        return _search(self.lowered.graph, self.model, values, self.plugins)


def _search(graph: Graph, module: nn.Module, inputs: Values, plugins: Sequence[str], prefix: str = "") -> str | None:
    values: dict[Edge, torch.Tensor] = {name: inputs[name] for name in graph.inputs if name in inputs}
    for node in graph.nodes:
        path = f"{prefix}{node.name}"
        given = {port: values[edge] for port, edge in node.inputs.items() if edge in values}
        if len(given) < len(node.inputs):
            return None  # an input failed earlier
        try:
            with torch.no_grad():
                if node.kind == "expression":
                    made: Any = evaluate(parse(str(node.expression)), given)
                else:
                    called = graph.node(node.target) if node.target else node
                    made = module.get_submodule(called.name)(*call_order(called, given, plugins))
        except Exception:
            return _inside(node, module, given, plugins, path) or path
        results = made if isinstance(made, tuple) else (made,)
        if all(map(_is_finite, given.values())) and not all(map(_is_finite, results)):
            return _inside(node, module, given, plugins, path) or path
        values.update({f"{node.name}:{name}": item for name, item in zip(node.outputs, results, strict=True)})
    return None


def _inside(node: Node, module: nn.Module, given: Values, plugins: Sequence[str], path: str) -> str | None:
    if node.graph is None:
        return None
    return _search(node.graph, module.get_submodule(node.name), given, plugins, f"{path}.")


def _is_finite(item: torch.Tensor) -> bool:
    return not item.is_floating_point() or bool(item.isfinite().all())


class _SingleRank(Collective):
    rank, size = 0, 1

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def concatenate(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


def _gather(item: LossTerm | Measure, values: Values) -> tuple[Any, ...]:
    edges = item.edges
    return tuple(None if name is None else values[name] for name in (edges.input, edges.target, edges.mask))


def _read_by(term: LossTerm) -> tuple[str, ...]:
    return tuple(name for name in (term.edges.input, term.edges.target) if name is not None)


def _find_leaves(ends: Sequence[torch.Tensor]) -> tuple[set[int], bool]:
    """Follow the autograd graph back from the tensors `ends`. Return the ids of the leaf tensors that it reaches, and
    whether torch can differentiate every function on the way. The search does not go beyond a function whose derivative
    is zero everywhere."""
    found: set[int] = set()
    waiting: list[Any] = []
    for end in ends:
        if end.grad_fn is None:
            found.add(id(end))
        else:
            waiting.append(end.grad_fn)
    seen = set(waiting)
    is_derivable = True
    while waiting:
        node = waiting.pop()
        name = node.name()
        is_derivable &= name != _UNDERIVABLE
        if hasattr(node, "variable"):
            found.add(id(node.variable))
        if name in _FLAT:
            continue
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return found, is_derivable


def _is_small(lowered: Lowered) -> bool:
    num_parameters = sum(map(prod, lowered.parameters.values()))
    num_given = sum(activations(node) for node in (*lowered.batch_graph.nodes, *lowered.graph.nodes))
    return num_parameters <= SMALL_PARAMETERS and num_given * ROWS <= SMALL_WORK


def _may_have_idle(lowered: Lowered) -> bool:
    """Return whether some parameter may get no gradient, according to the graph alone. If in doubt, return True: for
    example if a layer is a plugin's, or an output of a node is not read."""
    read = {name for term in lowered.terms for name in _read_by(term)}
    if any(term.edges.target in lowered.graph.outputs for term in lowered.terms):
        return True  # parameters may be reached through a target
    return not set(lowered.graph.outputs) <= read or _has_loose_ends(lowered.graph, frozenset(lowered.graph.outputs))


def _has_loose_ends(graph: Graph, read: frozenset[str]) -> bool:
    """Return whether some parameter of a graph may get no gradient, because an output of a node is not read, an
    expression stops gradients, or a layer is a plugin's or a library's. `read`: outputs of `graph` that are read
    outside it."""
    used = {edge for node in graph.nodes for edge in node.inputs.values()} | {graph.outputs[name] for name in read}
    for node in graph.nodes:
        if node.expression is not None and stops_gradients(node.expression):
            return True
        if node.component is not None and node.component["type"] not in LAYERS:
            return True  # the behaviour of a plugin is unknown
        if is_library(node.component):
            return True  # such a model may have unread parts, such as a pooler
        outside = frozenset(output for output in node.outputs if f"{node.name}:{output}" in used)
        if node.graph is not None:
            if _has_loose_ends(node.graph, outside):
                return True
        elif len(outside) < len(node.outputs):
            return True
    return False


def stops_gradients(expression: str) -> tuple[str, ...]:
    """Return those functions and operators of an expression that pass no gradient; () if all pass one."""
    return tuple(name for name in parse(expression).operations if name in WITHOUT_GRADIENT)


def _has_library(graph: Graph) -> bool:
    return any(is_library(node.component) if node.graph is None else _has_library(node.graph) for node in graph.nodes)


@contextmanager
def _without_side_effects(double: bool) -> Iterator[None]:
    """Run the `with` block with one torch thread, because a process with a thread pool must not fork. With `double`,
    the default dtype in the block is float64. After the block, restore the number of threads, the default dtype and the
    state of the random generators."""
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64 if double else dtype)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    said = lines[0] if lines else type(error).__name__
    return said[:1].lower() + said[1:]
