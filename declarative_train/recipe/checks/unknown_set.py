"""unknown-set (K003)

Finds: a name in `evaluation.sets` that `data.split` does not have.
Why:   only what is split off, or has a source of its own, can be evaluated.
Bad:
    evaluation: {sets: [valid]}
Good:
    evaluation: {sets: [validation]}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.diagnostics.suggest import did_you_mean, respelt
from declarative_train.recipe.draft import Draft


def check(draft: Draft) -> Iterator[Diagnostic]:
    evaluation, split = draft.evaluation, draft.split
    if evaluation is None or evaluation.sets is None or split is None:
        return
    for position, name in enumerate(evaluation.sets):
        if name not in split:
            hint = did_you_mean(name, split) if split else f"add `{name}` to data.split"
            span = draft.span(("evaluation", "sets", position))
            yield error("K003", span, f"data.split has no set `{name}`", hint, fixes=respelt(span, name, split))
