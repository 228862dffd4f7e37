"""nothing-to-evaluate (K004)

Finds: an `evaluation` section in a recipe that has no set to evaluate.
Why:   it does nothing, and the run ends without a single validation number.
Bad:
    data:
      split: null
    evaluation: {every: 1 epoch}
Good:
    data:
      split: {validation: 0.2}
    evaluation: {every: 1 epoch}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic, warning
from declarative_train.recipe.draft import Draft


def check(draft: Draft) -> Iterator[Diagnostic]:
    evaluation = draft.evaluation
    if evaluation is not None and not evaluation.sets and draft.split == () and draft.is_written("evaluation"):
        message = "there is no set to evaluate: this does nothing"
        yield warning("K004", draft.span.key("evaluation"), message, "add `split: {validation: 0.1}` to data")
