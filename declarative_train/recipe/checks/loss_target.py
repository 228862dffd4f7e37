"""loss-target (O004)

Finds: a loss without the target that it compares with, or with a target that it has no use for.
Why:   a target that is not read is a mistake in what is trained.
Bad:
    objective:
      loss: {type: mse, input: logits}
Good:
    objective:
      loss: {type: cross_entropy, input: logits, target: digit}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.recipe.draft import Draft


def check(draft: Draft) -> Iterator[Diagnostic]:
    if draft.objective is None:
        return
    for name, term in draft.objective.losses.items():
        path, kind = f"objective.losses.{name}", term.component.type
        if term.component.needs_target and term.target is None:
            yield error("O004", draft.span(f"{path}.type"), f"{kind} needs a target", "add `target: FIELD`")
        if not term.component.needs_target and term.target is not None:
            span = draft.span.key(f"{path}.target")
            yield error("O004", span, f"{kind} compares with nothing: it has no use for a target", "leave it out")
