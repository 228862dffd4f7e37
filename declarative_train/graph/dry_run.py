"""One training and one evaluation step of the whole model, before there is a plan: what fails only when the parts are
put together, and which parameters a loss reaches.

A small model is built as the run builds it, on real rows; of a larger one only the history of its outputs on the meta
device is looked at, and that where its nodes leave any doubt. Nothing runs backward: where a GPU is, a process that
did could not be forked any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import isfinite, prod
from typing import Any

import torch
from torch import nn

from declarative_train.components.component import Collective, Judged
from declarative_train.components.expressions.functions import WITHOUT_GRADIENT
from declarative_train.components.expressions.grammar import parse
from declarative_train.components.expressions.lower import infer as evaluate
from declarative_train.components.layers import LAYERS
from declarative_train.components.layers.libraries import LIBRARIES
from declarative_train.components.layers.libraries.modules.node import without_memory
from declarative_train.graph.build import build, call_order
from declarative_train.graph.check_objective import Measure
from declarative_train.graph.check_objective import Term as LossTerm
from declarative_train.graph.cost import activations
from declarative_train.graph.graph import Edge, Graph, Node
from declarative_train.graph.initialise import Start, initialise
from declarative_train.graph.lower import Lowered

SMALL_PARAMETERS = 1 << 21
"""Elements of all parameters of a model that is built with its start values."""
SMALL_WORK = 1 << 22
"""Elements that its nodes may give for the rows of the rehearsal."""
ROWS, EXTREMES = 4, 12
"""The first ones, and at most so many where a field has an extreme value."""

Values = Mapping[str, torch.Tensor]
_FLAT = frozenset({"CeilBackward0", "FloorBackward0", "RoundBackward0", "RoundBackward1", "SignBackward0"})
"""Histories of functions whose derivative is zero wherever there is one."""
_UNDERIVABLE = (
    "torch::autograd::NotImplemented"  # torch's name for the history of what it cannot differentiate, such as `//`
)


@dataclass(slots=True)
class Rehearsal:
    """`idle`: parameters that no term reaches, by name. `unreached`: terms that reach no parameter; `underivable`:
    those with a function on the way that torch cannot differentiate. `not_finite`: terms and their first value that is
    not. `failure`: the phase (training, evaluation), and what torch said. `culprit`: the path of the node that fails
    first, or gives the first number that is not finite."""

    idle: frozenset[str] = frozenset()
    unreached: tuple[str, ...] = ()
    underivable: tuple[str, ...] = ()
    not_finite: dict[str, float] = field(default_factory=dict)
    failure: tuple[str, str] | None = None
    culprit: str | None = None


def rehearse(
    lowered: Lowered,
    parameters: Sequence[Start],
    plugins: Sequence[str],
    seed: int,
    rows: Values | None,
    *,
    double: bool = False,
) -> Rehearsal:
    """`rows`: a few real ones, by field, or None; `double`: the run computes in float64."""
    is_small = rows is not None and _is_small(lowered)
    if not is_small and not _may_have_idle(lowered):
        return Rehearsal()
    with _quietly(double):
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


class _Step:
    def __init__(self, lowered: Lowered, model: nn.Module, plugins: Sequence[str], double: bool) -> None:
        self.lowered, self.model, self.plugins, self.double = lowered, model, plugins, double
        self.found = Rehearsal()

    def on_meta(self) -> Rehearsal:
        specs = self.lowered.graph.inputs
        rows = {
            name: torch.empty((2, *spec.shape), dtype=self._dtype(spec.dtype), device="meta")
            for name, spec in specs.items()
        }
        try:
            self._reach(self._outputs(rows))
        except Exception as error:  # whatever torch or a plugin raises is what the user has to hear
            self.found.failure = ("training", _first_line(error))
        return self.found

    def without_memory(self) -> Rehearsal:
        """As on meta, on tensors that say they are on the CPU: libraries ask tensors on meta for values. What cannot be
        traced so says nothing."""
        with without_memory(self.model):
            specs = self.lowered.graph.inputs
            rows = {
                name: torch.zeros((2, *spec.shape), dtype=self._dtype(spec.dtype), device="cpu")
                for name, spec in specs.items()
            }
            with suppress(Exception):
                self._reach(self._outputs(rows))
        return self.found

    def on(self, rows: Values) -> Rehearsal:
        phase = "training"
        values: dict[str, torch.Tensor] = {}
        try:
            values = self._batch(rows)
            values |= self._outputs(values)
            self._reach(values)
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
            self.found.culprit = self._culprit(values)
        return self.found

    def _dtype(self, name: str) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, name)
        return torch.float64 if self.double and dtype.is_floating_point else dtype

    def _batch(self, rows: Values) -> dict[str, torch.Tensor]:
        """The fields, and what the batch graph makes of them."""
        values = {name: item.to(self._dtype(str(item.dtype).partition(".")[2])) for name, item in rows.items()}
        graph = self.lowered.batch_graph
        if graph.nodes:
            made = build(graph, self.plugins).eval()(*[values[name] for name in graph.inputs])
            values.update(zip(graph.outputs, made, strict=True))
        return values

    def _outputs(self, values: Values) -> dict[str, torch.Tensor]:
        graph = self.lowered.graph
        return dict(zip(graph.outputs, self.model(*[values[name] for name in graph.inputs]), strict=True))

    def _reach(self, values: Values) -> None:
        names = {id(item): name for name, item in self.model.named_parameters()}
        reached: set[str] = set()
        for term in self.lowered.terms:
            ends = [values[name] for name in _read_by(term) if name in values]
            leaves, is_derivable = _leaves([end for end in ends if end.requires_grad])
            own = {names[leaf] for leaf in leaves if leaf in names}
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
                judged, target, mask = _given(term, values)
                total = float(module.sum(judged, target, mask, None).detach())
                if not isfinite(total):
                    self.found.not_finite[term.name] = total

    def _measure(self, measure: Measure, values: Values) -> None:
        judged, target, mask = self._specs(measure.edges.input, measure.edges.target, measure.edges.mask)
        edges = Judged(judged, target, mask, measure.class_dim, measure.ignore_index)
        metric = measure.component.build(edges, torch.device("cpu"))
        read, wanted, mask = _given(measure, values)
        metric.update(read, wanted, mask, None)
        metric.compute(_Alone())

    def _specs(self, *names: str | None) -> Any:
        return [None if name is None else self.lowered.specs[name] for name in names]

    def _culprit(self, values: Values) -> str | None:
        """Node by node: the first that fails, or gives numbers that are not finite from finite ones."""
        torch.manual_seed(0)
        return _search(self.lowered.graph, self.model, values, self.plugins)


def _search(graph: Graph, module: nn.Module, inputs: Values, plugins: Sequence[str], prefix: str = "") -> str | None:
    values: dict[Edge, torch.Tensor] = {name: inputs[name] for name in graph.inputs if name in inputs}
    for node in graph.nodes:
        path = f"{prefix}{node.name}"
        given = {port: values[edge] for port, edge in node.inputs.items() if edge in values}
        if len(given) < len(node.inputs):
            return None  # behind an input that was never made
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


class _Alone(Collective):
    rank, size = 0, 1

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def concatenate(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


def _given(item: LossTerm | Measure, values: Values) -> tuple[Any, ...]:
    edges = item.edges
    return tuple(None if name is None else values[name] for name in (edges.input, edges.target, edges.mask))


def _read_by(term: LossTerm) -> tuple[str, ...]:
    return tuple(name for name in (term.edges.input, term.edges.target) if name is not None)


def _leaves(ends: Sequence[torch.Tensor]) -> tuple[set[int], bool]:
    """The tensors without history to which a gradient of `ends` would go that is not zero everywhere, by id; and
    whether torch could compute it."""
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
    """False for the usual model: every output is read by a loss, every output of a node by another, and no expression
    holds a function that gradients do not pass."""
    read = {name for term in lowered.terms for name in _read_by(term)}
    return not set(lowered.graph.outputs) <= read or _has_loose_ends(lowered.graph, frozenset(lowered.graph.outputs))


def _has_loose_ends(graph: Graph, read: frozenset[str]) -> bool:
    """`read`: those of its outputs that are. What a block gives and nobody reads, such as the hidden states before the
    head, is none where the block itself goes on with it."""
    used = {edge for node in graph.nodes for edge in node.inputs.values()} | {graph.outputs[name] for name in read}
    for node in graph.nodes:
        if node.expression is not None and stops_gradients(node.expression):
            return True
        if node.component is not None and node.component["type"] not in LAYERS:
            return True  # nobody knows what a plugin does
        if node.component is not None and node.component["type"] in LIBRARIES:
            return True  # what a model has beside that which is read of it, such as a pooler
        outside = frozenset(output for output in node.outputs if f"{node.name}:{output}" in used)
        if node.graph is not None:
            if _has_loose_ends(node.graph, outside):
                return True
        elif len(outside) < len(node.outputs):
            return True
    return False


def stops_gradients(expression: str) -> tuple[str, ...]:
    """The functions and operators in an expression that no gradient passes, as they are called there."""
    return tuple(name for name in parse(expression).operations if name in WITHOUT_GRADIENT)


def _has_library(graph: Graph) -> bool:
    return any(
        _has_library(node.graph)
        if node.graph is not None
        else node.component is not None and node.component["type"] in LIBRARIES
        for node in graph.nodes
    )


@contextmanager
def _quietly(double: bool) -> Iterator[None]:
    """One thread: a process with a pool of them must not fork. Generators and defaults stay as they are."""
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
