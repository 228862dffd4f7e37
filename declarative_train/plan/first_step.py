"""Trial of the first training step on a few samples. It finds operations that fail, losses that are not finite, and
parameters on which no loss depends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from declarative_train.core.diagnostics.diagnostic import Diagnostic, Related
from declarative_train.core.span import Span
from declarative_train.data.shared_sets import Sample
from declarative_train.graph.dry_run import EXTREMES, ROWS, DryRunResult, run_dry, stops_gradients
from declarative_train.graph.lower import Lowered
from declarative_train.plan.checks.shapes import (
    idle_parameters,
    no_derivative,
    no_gradient,
    not_finite,
    step_fails,
    target_that_trains,
)
from declarative_train.plan.plan import ParameterPlan
from declarative_train.recipe.model.tree import BlockNode, ExpressionNode, Scope
from declarative_train.recipe.model.walk import Frame, walk
from declarative_train.recipe.recipe import Recipe


def check_first_step(
    recipe: Recipe, lowered: Lowered, parameters: tuple[ParameterPlan, ...], sample: Sample
) -> tuple[tuple[ParameterPlan, ...], list[Diagnostic]]:
    """Compute the first step on a few samples. Return the parameters and the diagnostics of the step. Parameters on
    which no loss depends are frozen in the result."""
    rows = sample.pick_extremes(sorted(_fields_read(lowered)), ROWS, EXTREMES)
    taken = {name: torch.from_numpy(values) for name, values in rows.items() if values is not None}
    found = run_dry(
        lowered,
        parameters,
        recipe.plugins,
        recipe.seed,
        taken if len(taken) == len(rows) else None,
        double=recipe.training.precision.compute == "fp64",
    )
    idle = {name for name in found.idle if name in {item.name for item in parameters if not item.frozen}}
    if len(found.unreached) == len(lowered.terms):
        idle = set()  # the errors report them already
    diagnostics = [
        *_check_gradients(recipe, lowered, found),
        *_check_sides(recipe, lowered, found, {item.name for item in parameters if not item.frozen}),
        *_check_values(recipe, found),
        *_report_idle(recipe, idle),
    ]
    return tuple(
        replace(item, frozen=True, idle=True) if item.name in idle else item for item in parameters
    ), diagnostics


def _fields_read(lowered: Lowered) -> set[str]:
    made = set(lowered.batch_graph.outputs)
    ends = {name for name in lowered.sources.values() if name not in lowered.graph.outputs}
    return (set(lowered.batch_graph.inputs) | set(lowered.graph.inputs) | ends) - made


def _check_gradients(recipe: Recipe, lowered: Lowered, found: DryRunResult) -> Iterator[Diagnostic]:
    for term in lowered.terms:
        span = recipe.span(("objective", "losses", term.name, "input"))
        stops = tuple(_stops(recipe.model.scope, recipe.model.scope.outputs.get(term.edges.input, term.edges.input)))
        if term.name in found.unreached:
            yield no_gradient(span, term.name, term.edges.input, stops)
        elif term.name in found.underivable:
            yield no_derivative(span, term.name, term.edges.input, stops)


_ONE_SIDED = frozenset({"bce_with_logits", "cross_entropy", "kl_div"})


def _check_sides(recipe: Recipe, lowered: Lowered, found: DryRunResult, trained: set[str]) -> Iterator[Diagnostic]:
    """Warn about losses whose target depends on trained parameters, so that the loss trains its target too.

    Losses that compare the samples of a batch with each other are left out, because they train both inputs by design.
    `trained`: names of the trained parameters.
    """
    for term in lowered.terms:
        mixes = getattr(term.component, "over", None) is not None
        if term.name not in found.sides or term.edges.target is None or mixes:
            continue
        given, target = (sorted(side & trained) for side in found.sides[term.name])
        if target and (given or term.component.type in _ONE_SIDED):
            span = recipe.span(("objective", "losses", term.name, "target"))
            yield target_that_trains(span, term.name, term.edges.target, target[0] if given else None)


def _stops(scope: Scope, wire: str) -> Iterator[Related]:
    """Yield a note (place and message) for each expression on which the value `wire` depends and through which no
    gradient passes."""
    for source in walk(Frame(scope), [wire]):
        node = source.node
        if isinstance(node, ExpressionNode) and (functions := stops_gradients(node.expression.text)):
            yield Related(node.span, f"no gradient passes through `{functions[0]}`")


def _check_values(recipe: Recipe, found: DryRunResult) -> Iterator[Diagnostic]:
    culprit = None if found.culprit is None else (found.culprit, _node_span(recipe.model.scope, found.culprit))
    if found.failure is not None:
        phase, message = found.failure
        yield step_fails(culprit[1] if culprit else recipe.key_span("model.graph"), phase, message, found.culprit)
    for name, value in found.not_finite.items():
        yield not_finite(
            recipe.span(("objective", "losses", name, "input")),
            name,
            value,
            culprit,
            skips=recipe.training.non_finite == "skip",
        )


def _node_span(scope: Scope, path: str) -> Span:
    node = next(node for node in scope.nodes if path == node.path or path.startswith(f"{node.path}."))
    return _node_span(node.scope, path) if isinstance(node, BlockNode) and path != node.path else node.key_span


def _report_idle(recipe: Recipe, idle: Sequence[str] | set[str]) -> Iterator[Diagnostic]:
    by_node: dict[str, list[str]] = defaultdict(list)
    for name in sorted(idle):
        by_node[name.partition(".")[0]].append(name)
    for node, names in by_node.items():
        yield idle_parameters(recipe.key_span(("model", "graph", node)), node, names)
