"""expression-does-not-fit (G004)

Finds: an operation of an expression that does not take the shapes or dtypes of its tensors.
Why:   it would fail in the first step, on every rank.
Bad:
    model:
      graph:
        mixed: pixels + pixels[:, :32]
        hidden: {input: mixed}
Good:
    model:
      graph:
        mixed: pixels[:, 32:] + pixels[:, :32]
        hidden: {input: mixed}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.terms.span import Span


def expression_does_not_fit(
    span: Span, said: str, help: str | None = None, made: tuple[Related, ...] = ()
) -> Diagnostic:
    return error("G004", span, said, help, made)
