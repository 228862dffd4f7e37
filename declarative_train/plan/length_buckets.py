"""Graph of the model at the length of each bucket, and checks whether model and losses allow several lengths."""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.data.length_buckets import bucket_shares, buckets_of, specs_at
from declarative_train.data.spec import DataSpec
from declarative_train.graph.check_objective import Measure, Term
from declarative_train.graph.dry_run import fails_at
from declarative_train.graph.lower import Lowered, lower
from declarative_train.plan.checks.buckets import model_of_one_length, padding_decides_mean
from declarative_train.recipe.recipe import Recipe


def lower_buckets(
    recipe: Recipe, lowered: Lowered, data: DataSpec
) -> tuple[tuple[tuple[float, Lowered], ...], list[Diagnostic]]:
    """Return ((share of the training samples, the lowered recipe) for each bucket; diagnostics). Without buckets, the
    only one is `lowered` itself."""
    shares = bucket_shares(data)
    if not shares:
        return ((1.0, lowered),), []
    name = next(iter(buckets_of(data)))
    found, diagnostics = [], list[Diagnostic]()
    for level, (length, share) in enumerate(shares[:-1]):
        made, problems = lower(recipe, specs_at(data, level))
        why = next((each.message for each in problems if each.is_error), None)
        why = why or (None if made is None else fails_at(lowered, recipe.plugins, recipe.seed, made.graph))
        if made is None or why is not None:
            span = recipe.span(f"data.fields.{name.partition('.')[0]}.length")
            return (), [model_of_one_length(span, length, why or "its graph is empty")]
        found.append((share, made))
    diagnostics += _check_means(recipe, lowered, found[0][1])
    return (*found, (shares[-1][1], lowered)), diagnostics


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
    """Return whether a loss or metric without a mask reads a value for each position, because its input has another
    shape in the `longest` bucket than in the `shortest`."""
    name = each.edges.input
    return each.edges.mask is None and longest.specs[name].shape != shortest.specs[name].shape
