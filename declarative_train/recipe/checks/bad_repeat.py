"""bad-repeat (B005)

Finds: a `repeat` that is not a whole number of copies, 1 or more.
Why:   no copies would leave nothing to read; `when: false` switches a node off.
Bad:
    model:
      graph:
        hidden: {type: linear, out_features: 64, repeat: 0, input: pixels}
        logits: {type: linear, out_features: 10}
Good:
    model:
      graph:
        hidden: {type: linear, out_features: 64, repeat: 2, input: pixels}
        logits: {type: linear, out_features: 10}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def bad_repeat(span: Span, found: str, help: str | None = None) -> Diagnostic:
    return error("B005", span, f"`repeat` is {found}; it is a number of copies, 1 or more", help)
