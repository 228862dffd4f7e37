"""Checks of losses and metrics: whether they accept the shape, dtype and values of the tensors that they read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import torch

from declarative_train.components.component import Loss, Metric, MetricInputs, ShapeError
from declarative_train.core.diagnostics.diagnostic import Diagnostic, Related
from declarative_train.core.span import Span
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.graph.checks.objective import (
    count_from_model,
    nothing_to_learn,
    objective_does_not_fit,
    scores_not_in_chunks,
)
from declarative_train.graph.checks.shapes import mask_without_items, negative_mask, non_finite_values
from declarative_train.graph.chunked import NoHeadError, head_of
from declarative_train.graph.evaluate_fields import ObservedValues, Observer, first_row
from declarative_train.graph.graph import Graph
from declarative_train.graph.infer import WireOrigin
from declarative_train.recipe.recipe import Recipe
from declarative_train.recipe.sections.objective import LossTerm, MetricTerm

Specs = Mapping[str, TensorSpec | None]


@dataclass(frozen=True, slots=True)
class Edges:
    """Names of the input, target and mask tensors that a loss or metric reads, as written in the recipe."""

    input: str
    target: str | None
    mask: str | None


@dataclass(frozen=True, slots=True)
class Term:
    name: str
    component: Loss
    edges: Edges
    weight: float


@dataclass(frozen=True, slots=True)
class Measure:
    """Metric of the recipe. `edges`: names of the tensors that it reads. `loss`: name of the loss from which the metric
    takes each tensor that the recipe does not give it; None: it takes none. `ignore_index`, `class_dim`, `one_class`:
    settings of this loss."""

    name: str
    component: Metric
    edges: Edges
    ignore_index: int | None
    class_dim: int
    loss: str | None = None
    one_class: bool = False

    def with_task(self, target: TensorSpec | None) -> Measure:
        """Return the metric with `task: multiclass`, if the recipe sets no task and the target has a probability for
        each class but only one right class (`one_class`). Otherwise return it unchanged. `target`: spec of the
        target."""
        if (
            not self.one_class
            or target is None
            or not target.is_floating
            or getattr(self.component, "task", "") is not None
        ):
            return self
        return replace(self, component=self.component.model_copy(update={"task": "multiclass"}))


def terms_of(recipe: Recipe) -> tuple[Term, ...]:
    return tuple(
        Term(name, term.component, Edges(term.input, term.target, term.mask), term.weight)
        for name, term in recipe.objective.losses.items()
    )


def measures_of(recipe: Recipe) -> tuple[Measure, ...]:
    return tuple(
        _make_measure(name, metric, recipe.objective.losses) for name, metric in recipe.objective.metrics.items()
    )


def _names(edges: Edges) -> tuple[str | None, ...]:
    return edges.input, edges.target, edges.mask


def _follows_from_loss(term: Term, other: Term | Measure) -> bool:
    """Return whether `other` can be computed from the values of the loss `term`, without the scores. It must be a
    perplexity with the same tensors and the same `ignore_index`, and the loss must have neither label smoothing nor
    class weights."""
    if isinstance(other, Term) or other.component.type != "perplexity" or other.edges != term.edges:
        return False
    same = getattr(term.component, "ignore_index", None) == other.ignore_index
    return same and not any(getattr(term.component, name, None) for name in ("label_smoothing", "class_weights"))


def _select_counted(target: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the values of `target` at which `mask` is not 0. If the two tensors have different numbers of rows, only
    the rows that both have are used."""
    rows = min(len(target), len(mask))
    return target[:rows][mask[:rows] != 0]


def _make_measure(name: str, metric: MetricTerm, losses: Mapping[str, LossTerm]) -> Measure:
    """Return the Measure of the metric `name`. Tensors that the metric does not name are those of a loss: the one in
    its key `of` or, without `of` and `input`, the only loss of the recipe. With `input` but without `of`, nothing is
    taken from a loss."""
    borrowed = metric.of or (next(iter(losses)) if metric.input is None and len(losses) == 1 else None)
    if borrowed is None:
        assert metric.input is not None
        return Measure(name, metric.component, Edges(metric.input, metric.target, metric.mask), None, -1)
    loss = losses[borrowed]
    edges = Edges(metric.input or loss.input, metric.target or loss.target, metric.mask or loss.mask)
    ignore_index = getattr(loss.component, "ignore_index", None)
    class_dim = getattr(loss.component, "class_dim", -1)
    return Measure(name, metric.component, edges, ignore_index, class_dim, borrowed, loss.component.one_class)


def names_read(terms: Iterable[Term], measures: Iterable[Measure]) -> tuple[str, ...]:
    """Return the names of all tensors that losses and metrics read, each once."""
    edges = [*(term.edges for term in terms), *(measure.edges for measure in measures)]
    names = [name for each in edges for name in (each.input, each.target, each.mask) if name is not None]
    return tuple(dict.fromkeys(names))


class ObjectiveCheck:
    """Checker of losses and metrics. Its methods add errors and warnings to the list `diagnostics`.

    specs      dict from a tensor in the recipe to its spec; None: unknown, because of an earlier error
    origins    dict from a tensor to the place of the node or field that computes it
    see        function from a tensor's name to its values on sample rows, or None"""

    def __init__(
        self,
        recipe: Recipe,
        specs: Specs,
        origins: Mapping[str, WireOrigin],
        observer: Observer,
        see: Callable[[str], ObservedValues | None],
    ) -> None:
        self._observer, self._see = observer, see
        self._recipe = recipe
        self._specs = specs
        self._origins = origins
        self.diagnostics: list[Diagnostic] = []

    def fits(self, item: Term | Measure) -> bool:
        """Return whether a loss or metric accepts the shape, dtype and range of its tensors. A mistake is added to
        `diagnostics`; if it is only a warning, the result is still True. If a shape is unknown, return False without a
        diagnostic."""
        edges = item.edges
        found = [None if name is None else self._specs[name] for name in (edges.input, edges.target, edges.mask)]
        judged, target, mask = found
        if judged is None or (edges.target and target is None) or (edges.mask and mask is None):
            return False
        shape_error, rows = self._observer.check(
            lambda specs: self._check(item, judged, specs.get("target"), mask),
            {} if target is None else {"target": target},
            {"target": self._observe(edges.target, target)},
            None if edges.mask is None else self._see(edges.mask),
            item.ignore_index if isinstance(item, Measure) else getattr(item.component, "ignore_index", None),
        )
        if shape_error is None:
            return True
        shape_error = _with_names(shape_error, edges)
        at = [Related(self._place(item, shape_error), row) for row in rows.values()]
        said = objective_does_not_fit(self._place(item, shape_error), shape_error, (*self._find_origins(item), *at))
        if not any((each.message, each.related) == (said.message, said.related) for each in self.diagnostics):
            self.diagnostics.append(said)  # metrics with the same error report it once
        return shape_error.is_warning

    def _check(
        self, item: Term | Measure, judged: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None
    ) -> ShapeError | None:
        if isinstance(item, Term):
            return item.component.check(judged, target, mask)
        return item.component.check(MetricInputs(judged, target, mask, item.class_dim, item.ignore_index))

    def _observe(self, name: str | None, spec: TensorSpec | None) -> ObservedValues | None:
        return None if name is None or spec is None else self._see(name)

    def check_sources(self, term: Term, from_fields: Collection[str], learned: Collection[str]) -> None:
        """Report a loss term whose number of valid items depends on other values than fields, or whose input and target
        depend on no parameter. `from_fields`: names of tensors that are computed from fields alone. `learned`: names of
        tensors that depend on a parameter."""
        counted = [("mask", term.edges.mask)] if term.edges.mask is not None else []
        if term.edges.target is not None and self._target_counts(term):
            counted.append(("target", term.edges.target))
        for port, name in counted:
            if name is not None and name not in from_fields:
                origin = self._origins.get(name)
                made = None if origin is None else origin.span
                is_drawn = name not in learned
                self.diagnostics.append(count_from_model(self._span(term, port), port, name, made, is_drawn=is_drawn))
        if not {term.edges.input, term.edges.target} & set(learned):
            self.diagnostics.append(nothing_to_learn(self._span(term, "input"), term.name, term.edges.input))

    def check_chunks(self, term: Term, graph: Graph, terms: Iterable[Term], measures: Iterable[Measure]) -> None:
        """Check that a loss with `chunks` can be computed chunk by chunk. Its scores must come from a linear layer of
        `graph`, and no other loss or metric may read them. Its target must be class ids that the model does not
        compute. `terms`, `measures`: all losses and metrics of the recipe."""
        if getattr(term.component, "chunks", None) is None:
            return
        target, scores = self._specs[str(term.edges.target)], self._specs[term.edges.input]
        assert target is not None
        assert scores is not None
        edge = graph.outputs.get(term.edges.input)
        named = {name for name, each in graph.outputs.items() if each == edge}
        every: list[Term | Measure] = [*terms, *measures]
        others = [each for each in every if each != term and named.intersection(_names(each.edges))]
        reader = next((each.name for each in others if not _follows_from_loss(term, each)), None)
        try:
            if target.is_floating:
                raise NoHeadError("its target has a probability for each class, as large as the scores")
            if term.edges.target in graph.outputs or edge is None:
                raise NoHeadError(f"the model computes its target `{term.edges.target}`")
            if getattr(term.component, "class_dim", -1) not in (-1, len(scores.shape)):
                raise NoHeadError("the classes are not the last dimension of the scores")
            if reader is not None:
                raise NoHeadError(f"`{reader}` also reads the scores, so they must all exist")
            head_of(graph, edge)
        except NoHeadError as reason:
            self.diagnostics.append(scores_not_in_chunks(self._span(term, "chunks"), term.name, str(reason)))

    def check_values(self, term: Term) -> None:
        """Check a loss on sample rows. At least one item must be valid. No value of the mask may be below 0. If an
        expression computes the target, its values must be finite at all items that the mask includes."""
        edges, sample = term.edges, self._observer.sample
        mask = None if edges.mask is None else self._see(edges.mask)
        if mask is not None and (row := first_row(mask.values < 0)) is not None:
            self.diagnostics.append(
                negative_mask(self._span(term, "mask"), mask.values[row].min().item(), self._observer.row(row))
            )
            return
        is_made = edges.target is not None and ":" in self._wire(edges.target)
        counts = not term.component.needs_balance and edges.target is not None and self._target_counts(term)
        target = self._see(edges.target) if edges.target is not None and (is_made or counts) else None
        if is_made and target is not None and (edges.mask is None or mask is not None):
            kept = target.values if mask is None else _select_counted(target.values, mask.values)
            if first_row(~kept.isfinite()) is not None:
                self.check_finite(target)
        lacks = (edges.mask is not None and mask is None) or (counts and target is None)
        if sample is None or lacks or (mask is None and not counts):
            return
        rows = sample.num_training
        values = [None if seen is None else seen.values[:rows] for seen in (target, mask)]
        if any(each is not None and len(each) < rows for each in values):
            return
        judged, wanted, weight = (None if name is None else self._specs[name] for name in _names(edges))
        assert judged is not None
        if term.component.needs_balance:  # it cannot be built before the classes are counted; its weights are above 0
            counted = values[1] is None or bool((values[1] != 0).any())
        else:
            counted = bool(term.component.build(judged, wanted, weight).count(values[0], values[1], None, rows))
        if not counted:
            span = self._span(term, "target" if edges.mask is None else "mask")
            self.diagnostics.append(mask_without_items(span, rows, is_certain=sample.has_all_training))

    def check_finite(self, seen: ObservedValues | None) -> None:
        if seen is not None and seen.made_by is not None:
            said = non_finite_values(*seen.made_by)
            if said not in self.diagnostics:
                self.diagnostics.append(said)

    def _wire(self, name: str) -> str:
        return self._recipe.model.scope.outputs.get(name, name)

    def _target_counts(self, term: Term) -> bool:
        """Return whether the values of a loss's target decide which items are valid (as with `ignore_index`) or how the
        classes are weighted (`balanced`)."""
        if term.component.needs_balance:
            return True
        judged, target = self._specs[term.edges.input], self._specs[str(term.edges.target)]
        assert judged is not None
        return term.component.build(judged, target, None).items_per_row is None

    def _span(self, item: Term | Measure, key: str) -> Span:
        kind = "losses" if isinstance(item, Term) else "metrics"
        return self._recipe.span(("objective", kind, item.name, *key.split(".")))

    def _place(self, item: Term | Measure, shape_error: ShapeError) -> Span:
        """Return the span of the key of `item` (a loss or metric) that `shape_error` is about. If the recipe does not
        have this key, return the span of `item`."""
        return self._span(item, shape_error.field or shape_error.port or "type")

    def _find_origins(self, item: Term | Measure) -> tuple[Related, ...]:
        edges, precision = item.edges, self._recipe.training.precision.compute
        names = dict.fromkeys(name for name in (edges.input, edges.target, edges.mask) if name is not None)
        return tuple(
            Related(origin.span, f"`{name}` is {spec.describe(precision)}")
            for name in names
            if (origin := self._origins.get(name)) is not None and (spec := self._specs[name]) is not None
        )


def _with_names(shape_error: ShapeError, edges: Edges) -> ShapeError:
    """Return the error with a changed hint: the names of the tensors (`edges`) replace the words INPUT, TARGET and
    MASK."""
    hint = shape_error.help
    for word, name in (("INPUT", edges.input), ("TARGET", edges.target), ("MASK", edges.mask)):
        hint = hint.replace(f"{word}[", f"{name}[") if hint and name else hint
    return shape_error._replace(help=hint)
