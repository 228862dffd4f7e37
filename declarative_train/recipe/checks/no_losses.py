"""no-losses (O006)

Finds: an objective without a single loss.
Why:   there would be nothing to minimise.
Bad:
    objective:
      loss: null
Good:
    objective:
      loss: {type: cross_entropy, input: logits, target: digit}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.recipe.draft import Draft


def check(draft: Draft) -> Iterator[Diagnostic]:
    if draft.objective is not None and not draft.objective.losses:
        yield error(
            "O006",
            draft.span.key("objective.losses"),
            "there is no loss: nothing is minimised",
            "add `loss`",
            rests_on="all files",
        )
