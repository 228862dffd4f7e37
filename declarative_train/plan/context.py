"""Context parallelism in a plan: division of the positions of a batch over the ranks of the `context` axis."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from declarative_train.components.losses import LOSSES
from declarative_train.components.metrics import METRICS
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.graph.check_objective import Edges
from declarative_train.graph.context_cuts import find_mixing
from declarative_train.graph.lower import Lowered
from declarative_train.plan.checks.cuts import positions_not_divided
from declarative_train.plan.layout import ContextPlan, LayoutPlan
from declarative_train.recipe.recipe import Recipe
from declarative_train.recipe.sections.parallelism import Axes


def divide_positions(
    layout: LayoutPlan, recipe: Recipe, lowered: Lowered
) -> tuple[LayoutPlan | None, list[Diagnostic]]:
    """Divide the positions of sequences over the ranks of the `context` axis. Return (layout with its ContextPlan, []).
    Without a `context` axis, the layout is returned unchanged.

    Return (None, errors) if the positions cannot be divided evenly, or if the model or the objective needs positions of
    other ranks in a way that is not supported.
    """
    if not layout.has("context"):
        return layout, []
    graph, size = lowered.graph, layout.size("context")
    lengths = [spec.shape[:1] for spec in graph.inputs.values()]
    length = lengths[0][0] if lengths and lengths[0] else 0
    reason = ""
    if not length or length % (2 * size):
        reason = f"sequences of {length} positions do not divide into {2 * size} chunks, two for each rank"
    if not reason:
        reason = find_mixing(graph, length, recipe.plugins) or next(_find_reasons(lowered, length), "")
    if reason:
        return None, [positions_not_divided(recipe.span("parallelism.context"), reason)]
    edges = [*(term.edges for term in lowered.terms), *(measure.edges for measure in lowered.measures)]
    read = {name for each in edges for name in (each.target, each.mask) if name is not None}
    given = {**graph.inputs, **{lowered.sources.get(name, name): lowered.specs[name] for name in read}}
    names = tuple(sorted(name for name in given.keys() - graph.outputs.keys() if given[name].shape[:1] == (length,)))
    assert isinstance(recipe.mode, Axes)
    assert recipe.mode.context is not None
    return replace(layout, context=ContextPlan(length, names, recipe.mode.context.keys)), []


def _find_reasons(lowered: Lowered, length: int) -> Iterator[str]:
    """Yield a reason, in words, for each loss or metric that needs all `length` positions of a sequence on one rank."""
    for term in lowered.terms:
        is_own = term.component.per_item and term.component.type in LOSSES
        class_dim = getattr(term.component, "class_dim", -1)
        yield from _find_in(lowered, length, f"the loss `{term.name}`", term.edges, class_dim, is_own)
    for each in lowered.measures:
        is_own = each.component.type in METRICS
        yield from _find_in(lowered, length, f"the metric `{each.name}`", each.edges, each.class_dim, is_own)


def _find_in(lowered: Lowered, length: int, what: str, edges: Edges, class_dim: int, is_own: bool) -> Iterator[str]:
    read = [value for value in (edges.input, edges.target, edges.mask) if value is not None]
    whole = [value for value in read if lowered.specs[value].shape[:1] != (length,)]
    if whole and len(whole) < len(read):
        yield f"{what} reads `{whole[0]}`, which has no positions"
    elif class_dim == 1 and not whole:
        yield f"{what} has its classes in a dimension before the positions"
    elif not is_own:
        yield f"{what} may read all positions of a row"
