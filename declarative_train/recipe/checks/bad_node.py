"""bad-node (B010)

Finds: a node that is neither a component (a mapping with `type`) nor an expression (text).
Why:   a list or a number says nothing that could be computed.
Bad:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixels}
        scaled: 3
        logits: {type: linear, out_features: 10}
Good:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixels}
        scaled: hidden * 3
        act: {input: scaled}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def bad_node(span: Span, name: str, found: str, help: str | None = None) -> Diagnostic:
    wanted = "a mapping such as `{type: relu}`, or an expression"
    return error("B010", span, f"the node `{name}` is {found}; it is {wanted}", help)
