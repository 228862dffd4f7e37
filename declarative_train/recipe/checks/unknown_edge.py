"""unknown-edge (W001)

Finds: an input, an expression or an output that names no node and no field.
Why:   a wire must come from somewhere; a block sees its own inputs and nodes only.
Bad:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixel}
        logits: {type: linear, out_features: 10}
Good:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixels}
        logits: {type: linear, out_features: 10}
"""

from __future__ import annotations

from collections.abc import Iterable

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.diagnostics.suggest import did_you_mean, respelt
from declarative_train.terms.span import Span


def unknown_edge(span: Span, name: str, known: Iterable[str], help: str | None = None) -> Diagnostic:
    names, message = list(known), f"there is no node or field `{name}` here"
    if help is not None:
        return error("W001", span, message, help)
    return error("W001", span, message, did_you_mean(name, names), fixes=respelt(span, name, names))
