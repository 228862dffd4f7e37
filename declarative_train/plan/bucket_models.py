"""Models for length buckets: the graph at the length of each bucket, the shapes of a pipeline's values at each length,
and checks that model, losses and layout allow several lengths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.data.length_buckets import bucket_shares, buckets_of, specs_at
from declarative_train.data.spec import DataSpec
from declarative_train.graph.check_objective import Measure, Term
from declarative_train.graph.chunked import with_chunked_heads
from declarative_train.graph.dry_run import fails_at
from declarative_train.graph.lower import Lowered, lower
from declarative_train.graph.partition import open_blocks, stage_graphs
from declarative_train.plan.checks.buckets import bucket_not_divided, model_of_one_length, padding_decides_mean
from declarative_train.plan.context import divide_positions
from declarative_train.plan.layout import LayoutPlan
from declarative_train.plan.model_cuts import divide_model
from declarative_train.plan.plan import ParameterPlan, TermPlan
from declarative_train.recipe.recipe import Recipe


def lower_buckets(
    recipe: Recipe, lowered: Lowered, data: DataSpec
) -> tuple[tuple[tuple[float, Lowered], ...], list[Diagnostic]]:
    """Lower the model for the length of each length bucket. Return (share, model) for each bucket, the shortest first,
    and diagnostics. `share`: the part of the training samples that is in the bucket.

    Without buckets, the only item is (1.0, `lowered`). After an error, there are no items."""
    shares = bucket_shares(data)
    if not shares:
        return ((1.0, lowered),), []
    name = next(iter(buckets_of(data)))
    found, diagnostics = [], list[Diagnostic]()
    for bucket_id, (length, share) in enumerate(shares[:-1]):
        made, problems = lower(recipe, specs_at(data, bucket_id))
        why = next((each.message for each in problems if each.is_error), None)
        why = why or (None if made is None else fails_at(lowered, recipe.plugins, recipe.seed, made.graph))
        if made is None or why is not None:
            span = recipe.span(f"data.fields.{name.partition('.')[0]}.length")
            return (), [model_of_one_length(span, length, why or "its graph is empty")]
        found.append((share, made))
    diagnostics += _check_means(recipe, lowered, found[0][1])
    return (*found, (shares[-1][1], lowered)), diagnostics


def check_layout(
    layout: LayoutPlan,
    recipe: Recipe,
    parameters: tuple[ParameterPlan, ...],
    data: DataSpec,
    shorter: Sequence[Lowered],
) -> Iterator[Diagnostic]:
    """Yield an error for the first length bucket whose positions cannot be divided over the ranks like those of the
    longest bucket. `shorter`: the lowered recipe for each bucket except the longest."""
    tokens = {} if layout.cuts is None else layout.cuts.tokens
    for (length, _), lowered in zip(bucket_shares(data), shorter, strict=False):
        if layout.context is not None:
            _, found = divide_positions(layout, recipe, lowered)
            if found:
                yield bucket_not_divided(recipe.span("parallelism.context"), "context", length, found[0].message)
                return
        if tokens:
            cuts = divide_model(layout, recipe, lowered, parameters)[0].cuts
            if cuts is None or cuts.tokens != tokens:
                why = f"its tokens do not divide over {layout.size('tensor', 'context')} ranks"
                yield bucket_not_divided(recipe.span("parallelism.tensor.sequence"), "sequence", length, why)
                return


def with_output_shapes(layout: LayoutPlan, terms: Sequence[TermPlan], by_length: Sequence[Lowered]) -> LayoutPlan:
    """Return the layout with the shapes of the outputs of each pipeline stage, for each length bucket. Without a
    pipeline, return the layout unchanged.

    `terms`: the losses. A loss with the key `chunks` is computed inside the last stage and so changes its outputs.
    `by_length`: the lowered recipe for each bucket, the longest last.
    """
    pipeline, found = layout.pipeline, []
    if pipeline is None:
        return layout
    for lowered in by_length:
        batch = {lowered.sources.get(name, name): spec for name, spec in lowered.specs.items()}
        graph = with_chunked_heads(lowered.graph, terms, batch)
        pieces = stage_graphs(open_blocks(graph, layout.units), pipeline.stages)
        found.append([[piece.graph.spec(edge).shape for edge in piece.graph.outputs.values()] for piece in pieces])
    shapes = tuple(
        tuple(
            tuple(layout.shape_on_rank(shape, longest) for shape, longest in zip(*each, strict=True))
            for each in zip(stages, found[-1], strict=True)
        )
        for stages in found
    )
    return replace(layout, pipeline=replace(pipeline, output_shapes=shapes))


def _check_means(recipe: Recipe, longest: Lowered, shortest: Lowered) -> Iterator[Diagnostic]:
    for term in longest.terms:
        if _counts_positions(term, longest, shortest) and not term.component.needs_balance:
            judged, target = longest.specs[term.edges.input], longest.specs.get(term.edges.target or "")
            if term.component.build(judged, target, None).items_per_row not in (None, 1.0):
                yield padding_decides_mean(recipe.span(("objective", "losses", term.name)), "loss", term.name)
    for measure in longest.measures:
        if measure.ignore_index is None and _counts_positions(measure, longest, shortest):
            yield padding_decides_mean(recipe.span(("objective", "metrics", measure.name)), "metric", measure.name)


def _counts_positions(each: Term | Measure, longest: Lowered, shortest: Lowered) -> bool:
    """Return whether a loss or metric counts padding: it has no mask, and the shape of its input differs between the
    `longest` and the `shortest` bucket."""
    name = each.edges.input
    return each.edges.mask is None and longest.specs[name].shape != shortest.specs[name].shape
