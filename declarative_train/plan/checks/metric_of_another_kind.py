"""metric-of-another-kind (O010)

Finds: a metric that does not suit the loss of the same output and target: the accuracy or auroc of a regression, the
       rmse of class scores, or the rmse of the logarithm that `poisson_nll` reads.
Why:   the number means nothing. `accuracy` of a regression compares signs; `rmse` of logits measures the distance of a
       score from 0 or 1; with `poisson_nll` it compares the logarithm of a rate with a count.
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
    for measure in lowered.measures:
        edges = (measure.edges.input, measure.edges.target)
        terms = [term for term in lowered.terms if (term.edges.input, term.edges.target) == edges]
        reasons = [_why_unsuited(measure, term, data) for term in terms]
        if reasons and reasons[0] is not None and None not in reasons:
            yield error("O010", recipe.span(("objective", "metrics", measure.name)), *reasons[0])


def _why_unsuited(measure: Measure, term: Term, data: DataSpec) -> tuple[str, str] | None:
    """Return (problem, advice) if a metric does not suit the loss that has the same input and target, else None."""
    metric, loss, about = measure.component.type, term.component.type, measure.component.about
    if _differ(measure, term, data):
        kind = "binary answers or classes" if about == "classes" else "numbers"
        return f"`{metric}` is a metric of {kind}, but the loss `{loss}` is not", _WAYS_OUT[term.component.about]
    if about == "numbers" and getattr(term.component, "log_input", False):
        read, target = measure.edges.input, measure.edges.target
        return (
            f"`{metric}` compares `{read}` with `{target}`, but the loss `{loss}` makes `{read}` a logarithm",
            f"add a node `rate: exp({read})`, and write `{metric}: {{input: rate, target: {target}}}`",
        )
    return None


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
