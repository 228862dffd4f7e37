"""bad-reference (W014)

Finds: an input that is not a reference: an expression, a number, a mapping.
Why:   wires live under `input` and `inputs` by name alone, so that a graph can be drawn without knowing its
       components.
Bad:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixels}
        act: {type: relu, input: hidden * 2}
Good:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixels}
        doubled: hidden * 2
        act: {type: relu, input: doubled}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def bad_reference(span: Span, found: str, help: str | None = None) -> Diagnostic:
    wanted = "`node`, `node.output`, `node.3` (a copy) or `node.3.output`"
    return error("W014", span, f"{found} is no reference", help or f"a reference is {wanted}")
