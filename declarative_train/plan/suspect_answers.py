"""Checks of the targets in the training rows: missing targets that are filled, rows with several classes, and class
weights that favour frequent classes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.data.shared_sets import MOST_ROWS, Sample, prepare_sets
from declarative_train.data.spec import DataSpec, FieldSpec
from declarative_train.data.split_rows import TRAINING
from declarative_train.files.paths import SourceError
from declarative_train.graph.check_objective import Term
from declarative_train.graph.lower import Lowered
from declarative_train.plan.checks.answers import filled_target, several_classes, weights_of_frequent_classes
from declarative_train.recipe.recipe import Recipe

_LEAST_ROWS = 20
_ALIKE, _OTHER = np.log(1.3), np.log(2.0)  # logarithms of ratios of two lists of weights
_UNEQUAL = np.log(3.0)  # of the numbers of rows of two classes


def check_answers(recipe: Recipe, lowered: Lowered, data: DataSpec, rows: Sample) -> Iterator[Diagnostic]:
    """Yield diagnostics for each loss whose target is a field with suspect values. A loss with a `mask` is left out,
    because the mask decides which targets count."""
    fields = {field.name: field for field in data.fields}
    for term in lowered.terms:
        field = fields.get(lowered.sources.get(term.edges.target or "", ""))
        if field is None or term.edges.mask is not None:
            continue
        yield from _check_missing(recipe, data, field, term)
        values = rows.first(field.name, rows.num_training)
        if values is None or len(values) < _LEAST_ROWS:
            continue
        yield from _check_several(recipe, field, term, values)
        if rows.has_all_training:
            yield from _check_weights(recipe, lowered, term, values)


def _check_missing(recipe: Recipe, data: DataSpec, field: FieldSpec, term: Term) -> Iterator[Diagnostic]:
    fill, unknown = field.component.get("missing", "error"), field.component.get("unknown")
    key = "unknown" if field.component["type"] == "category" else "missing"
    if field.component["type"] == "tensor":
        if fill == "error":
            return
    elif key != "unknown" or unknown is None or getattr(term.component, "ignore_index", None) == unknown:
        return
    training = prepare_sets(data)[TRAINING]
    chosen = training.rows.at(np.arange(min(len(training.rows), MOST_ROWS)))
    try:
        found = training.table.read(list(field.columns), chosen)
    except SourceError:
        return
    columns = [np.asarray(values) for values in found.values()]
    if len(chosen) < _LEAST_ROWS or any(values.dtype.kind != "f" for values in columns):
        return
    lacks = np.zeros(len(chosen), bool)
    for values in columns:
        lacks |= np.isnan(values).reshape(len(values), -1).any(axis=1)
    if not lacks.any() or (key == "unknown" and not any((values == unknown).any() for values in columns)):
        return
    filled = {"mean": "the mean", "zero": "0"}.get(str(fill), str(fill)) if key == "missing" else f"class {unknown}"
    place = recipe.span(f"data.fields.{field.name}.{key}")
    yield filled_target(place, field.name, term.name, int(lacks.sum()), len(chosen), filled)


def _check_several(recipe: Recipe, field: FieldSpec, term: Term, values: np.ndarray) -> Iterator[Diagnostic]:
    if term.component.type != "cross_entropy" or values.dtype.kind != "f" or values.ndim < 2:
        return
    num_ones = values.sum(axis=getattr(term.component, "class_dim", -1))
    if ((values == 0) | (values == 1)).all() and (num_ones > 1).any():
        place = recipe.span(("objective", "losses", term.name, "target"))
        several = (num_ones > 1).reshape(len(values), -1).any(axis=1)
        yield several_classes(place, term.name, field.name, int(several.sum()), len(values))


def _check_weights(recipe: Recipe, lowered: Lowered, term: Term, values: np.ndarray) -> Iterator[Diagnostic]:
    key = "pos_weight" if term.component.type == "bce_with_logits" else "class_weights"
    written = getattr(term.component, key, None)
    spec = lowered.specs[term.edges.input]
    if written is None or isinstance(written, str) or spec is None:
        return
    weights = (float(written),) if isinstance(written, int | float) else tuple(map(float, written))
    if key == "class_weights" and (values.dtype.kind not in "iu" or not all(weights)):
        return
    counts = np.asarray(term.component.tally(values, spec), np.float64)
    if not counts.all() or (key == "pos_weight" and (len(weights) > 1 or counts.shape[1] > 1)):
        return
    balanced = getattr(term.component.balance(counts.astype(np.int64)), key)
    usual = (balanced,) if isinstance(balanced, float) else balanced
    place = recipe.span(("objective", "losses", term.name, key))
    if key == "pos_weight":
        negatives, positives = counts[:, 0]
        is_unequal = abs(np.log(negatives / positives)) > _UNEQUAL
        if is_unequal and abs(np.log(weights[0] * negatives / positives)) < _ALIKE:
            yield weights_of_frequent_classes(place, term.name, key, weights, usual, is_permuted=False)
    elif np.log(counts.max() / counts.min()) > _UNEQUAL and _distance(weights, usual) > _OTHER:
        is_permuted = _distance(weights, counts) >= _ALIKE
        if not is_permuted or _distance(sorted(weights), sorted(usual)) < _ALIKE:
            yield weights_of_frequent_classes(place, term.name, key, weights, usual, is_permuted=is_permuted)


def _distance(some: object, others: object) -> float:
    """Return how far two lists of weights are from being proportional: the largest deviation of log(ratio) from its
    median, over the pairs of weights. It is 0 if the lists are proportional."""
    ratios = np.log(np.asarray(some, np.float64)) - np.log(np.asarray(others, np.float64))
    return float(np.abs(ratios - np.median(ratios)).max())
