"""metric-of-another-kind (O010)

Finds: a metric that does not suit its loss: the accuracy or auroc of a regression, or the rmse of class scores.
Why:   the number means nothing. `accuracy` of a regression compares signs; `rmse` of logits measures the distance of a
       score from 0 or 1.
Diff:
    objective:
      loss: {type: mse, input: logits, target: years}
-     metrics: [accuracy]
+     metrics: [mae]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from declarative_train.core.diagnostics.diagnostic import Diagnostic, error
from declarative_train.data.shared_sets import training_values
from declarative_train.data.spec import DataSpec
from declarative_train.graph.check_objective import Measure, Term
from declarative_train.graph.lower import Lowered
from declarative_train.recipe.recipe import Recipe

_WAYS_OUT = {
    "numbers": "for a regression use rmse, mae, mape or r2",
    "classes": "for classes use accuracy, f1 or auroc",
}


def check(recipe: Recipe, lowered: Lowered, data: DataSpec) -> Iterator[Diagnostic]:
    terms = {term.name: term for term in lowered.terms}
    for measure in lowered.measures:
        term = terms.get(measure.loss or "")
        if term is not None and measure.edges.input == term.edges.input and _differ(measure, term, data):
            place = recipe.span(("objective", "metrics", measure.name))
            kind = "binary answers or classes" if measure.component.about == "classes" else "numbers"
            message = f"`{measure.component.type}` is a metric of {kind}, but the loss `{term.component.type}` is not"
            yield error("O010", place, message, f"{_WAYS_OUT[term.component.about]}")


def _differ(measure: Measure, term: Term, data: DataSpec) -> bool:
    kinds = (measure.component.about, term.component.about)
    if kinds == ("numbers", "classes"):
        return True
    fields = {field.name for field in data.fields}
    if kinds != ("classes", "numbers") or measure.edges.target not in fields:
        return False
    return not _only_yes_and_no(training_values(data, str(measure.edges.target)))


def _only_yes_and_no(chunks: Iterable[np.ndarray]) -> bool:
    """Return whether all values of a target are 0 or 1, so that accuracy makes sense for a regression too. `chunks`:
    the values, in several arrays."""
    return all(bool(((chunk == 0) | (chunk == 1)).all()) for chunk in chunks)
