"""moved-default-wire (W009)

Finds: a recipe that adds or removes a node of its base, so that another node gets another node above.
Why:   the base wired that node without naming its input, and now it reads something else than its author saw.
Bad:
    # whole file
    extends: base.yaml
    model:
      graph:
        act: null
Good:
    # whole file
    extends: base.yaml
    model:
      graph:
        act: null
        logits: {input: hidden}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, warning
from declarative_train.terms.span import Span


def moved_default_wire(
    span: Span, name: str, before: str, before_at: Span | None, now: str, now_at: Span
) -> Diagnostic:
    """`before_at`: the node in the base, if its place is known; `now_at`: the node that it reads now."""
    there = () if before_at is None else (Related(before_at, f"it reads `{before}` in the base"),)
    related = (*there, Related(now_at, f"`{now}` is above it now"))
    message = f"`{name}` reads the node above, which was `{before}` in the base and is now `{now}`"
    return warning("W009", span, message, f"name it: `input: {now}`", related)
