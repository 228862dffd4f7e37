"""dead-node (W007)

Finds: a node whose result nobody uses.
Why:   it costs time and trains nothing; mostly another node reads the wrong name.
Bad:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixels}
        spare:  {type: relu, input: hidden}
        logits: {type: linear, out_features: 10}
Good:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixels}
        logits: {type: linear, out_features: 10}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def dead_node(span: Span, name: str, readers: str) -> Diagnostic:
    """`readers`: who could use it (the objective, the outputs of a block)."""
    way_out = f"use it in a node or in {readers}, or remove it"
    return error("W007", span, f"nobody uses the result of `{name}`", way_out)
