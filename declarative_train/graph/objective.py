"""The objective's terms and metrics, with the specs of what they read, checked against their components."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from declarative_train.components.component import Loss, Metric, Misfit
from declarative_train.diagnostics.diagnostic import Diagnostic, Related
from declarative_train.graph.checks.count_from_model import count_from_model
from declarative_train.graph.checks.nothing_to_learn import nothing_to_learn
from declarative_train.graph.checks.objective_does_not_fit import objective_does_not_fit
from declarative_train.graph.infer import Origin
from declarative_train.recipe.recipe import Recipe
from declarative_train.recipe.sections.objective import LossTerm, MetricTerm
from declarative_train.terms.span import Span
from declarative_train.terms.tensor_spec import TensorSpec

Specs = Mapping[str, TensorSpec | None]


@dataclass(frozen=True, slots=True)
class Edges:
    """What a term reads, as the recipe names it, with its specs."""

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
    """A metric; `ignore_index` and `class_dim` are those of `loss`, the loss that it is `of`."""

    name: str
    component: Metric
    edges: Edges
    ignore_index: int | None
    class_dim: int
    loss: str | None = None


def terms_of(recipe: Recipe) -> tuple[Term, ...]:
    return tuple(
        Term(name, term.component, Edges(term.input, term.target, term.mask), term.weight)
        for name, term in recipe.objective.losses.items()
    )


def measures_of(recipe: Recipe) -> tuple[Measure, ...]:
    return tuple(_measure(name, metric, recipe.objective.losses) for name, metric in recipe.objective.metrics.items())


def _measure(name: str, metric: MetricTerm, losses: Mapping[str, LossTerm]) -> Measure:
    """`of` need not be said with one loss; what the metric says itself comes first."""
    borrowed = metric.of or (next(iter(losses)) if metric.input is None and len(losses) == 1 else None)
    if borrowed is None:
        assert metric.input is not None
        return Measure(name, metric.component, Edges(metric.input, metric.target, metric.mask), None, -1)
    loss = losses[borrowed]
    edges = Edges(metric.input or loss.input, metric.target or loss.target, metric.mask or loss.mask)
    ignore_index = getattr(loss.component, "ignore_index", None)
    return Measure(name, metric.component, edges, ignore_index, getattr(loss.component, "class_dim", -1), borrowed)


def names_read(terms: Iterable[Term], measures: Iterable[Measure]) -> tuple[str, ...]:
    """Every edge that the objective reads, each once, as the recipe names it."""
    edges = [*(term.edges for term in terms), *(measure.edges for measure in measures)]
    names = [name for each in edges for name in (each.input, each.target, each.mask) if name is not None]
    return tuple(dict.fromkeys(names))


class ObjectiveCheck:
    """`specs` of the edges by the recipe's names (None: unknown, behind a mistake), `origins` where they are made."""

    def __init__(self, recipe: Recipe, specs: Specs, origins: Mapping[str, Origin]) -> None:
        self._recipe = recipe
        self._specs = specs
        self._origins = origins
        self.diagnostics: list[Diagnostic] = []

    def fits(self, item: Term | Measure) -> bool:
        """Whether the component takes what it gets; False also where that is not known."""
        edges = item.edges
        found = [None if name is None else self._specs[name] for name in (edges.input, edges.target, edges.mask)]
        judged, target, mask = found
        if judged is None or (edges.target and target is None) or (edges.mask and mask is None):
            return False
        if isinstance(item, Term):
            misfit = item.component.check(judged, target, mask)
        else:
            misfit = item.component.check(judged, target, mask, item.class_dim, item.ignore_index)
        if misfit is None:
            return True
        misfit = _with_names(misfit, edges)
        said = objective_does_not_fit(self._place(item, misfit), misfit, self._made(item))
        if not any((each.message, each.related) == (said.message, said.related) for each in self.diagnostics):
            self.diagnostics.append(said)  # of several metrics with one cause, the first says it
        return misfit.is_warning

    def sources(self, term: Term, from_fields: Collection[str], learned: Collection[str]) -> None:
        """For a term that fits: what its count depends on comes from fields alone, and its value from a parameter."""
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

    def _target_counts(self, term: Term) -> bool:
        """Whether the number of valid items depends on the values of the target."""
        if term.component.needs_balance:
            return True
        judged, target = self._specs[term.edges.input], self._specs[str(term.edges.target)]
        assert judged is not None
        return term.component.build(judged, target, None).items_per_row is None

    def _span(self, item: Term | Measure, key: str) -> Span:
        kind = "losses" if isinstance(item, Term) else "metrics"
        return self._recipe.span(("objective", kind, item.name, *key.split(".")))

    def _place(self, item: Term | Measure, misfit: Misfit) -> Span:
        """Under the key that the component points at; a metric that borrows has no edges of its own."""
        return self._span(item, misfit.field or misfit.port or "type")

    def _made(self, item: Term | Measure) -> tuple[Related, ...]:
        edges, precision = item.edges, self._recipe.training.precision
        names = dict.fromkeys(name for name in (edges.input, edges.target, edges.mask) if name is not None)
        return tuple(
            Related(origin.span, f"`{name}` is {spec.said(precision)}")
            for name in names
            if (origin := self._origins.get(name)) is not None and (spec := self._specs[name]) is not None
        )


def _with_names(misfit: Misfit, edges: Edges) -> Misfit:
    """Its hint with the names of the tensors, of which a component knows only that they are its input and target."""
    way_out = misfit.help
    for word, name in (("INPUT", edges.input), ("TARGET", edges.target), ("MASK", edges.mask)):
        way_out = way_out.replace(f"`{word}[", f"`{name}[") if way_out and name else way_out
    return misfit._replace(help=way_out)
