"""step-fails (G013)

Finds: a model that cannot make its first step on the first rows: an operation fails, or a loss is not a finite number.
Why:   the run would stop there; here the node is known that begins it.
Bad:
    model:
      graph:
        size: logits / sum(logits - logits, dim=-1, keepdim=true)
    objective:
      loss: {input: size}
Good:
    model:
      graph:
        size: logits / (1 + sum(abs(logits), dim=-1, keepdim=true))
    objective:
      loss: {input: size}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, Severity, error
from declarative_train.terms.span import Span


def step_fails(span: Span, phase: str, said: str, node: str | None) -> Diagnostic:
    where = "" if node is None else f" in `{node}`"
    return error("G013", span, f"the first {phase} step fails{where}", f"torch says: {said}")


def not_finite(span: Span, term: str, value: float, culprit: tuple[str, Span] | None, *, skips: bool) -> Diagnostic:
    """`skips`: steps that are not finite are left out, as the recipe asks."""
    made = () if culprit is None else (Related(culprit[1], f"the first such number comes out of `{culprit[0]}`"),)
    said = error(
        "G013",
        span,
        f"the loss `{term}` is {value:g} in the first step, before anything is learned",
        "look at what is divided by, and at what logarithms and roots are taken of",
        made,
    )
    return said._replace(severity=Severity.WARNING) if skips else said
