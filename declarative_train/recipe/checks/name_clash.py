"""name-clash (W010)

Finds: a node that has the name of a field, or in a block that of an input.
Why:   fields and nodes share one namespace, so a reference never means two things.
Bad:
    model:
      graph:
        pixels: {type: linear, out_features: 32, input: pixels}
        logits: {type: linear, out_features: 10}
Good:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixels}
        logits: {type: linear, out_features: 10}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.terms.span import Span


def name_clash(span: Span, name: str, what: str, other: Span | None) -> Diagnostic:
    related = () if other is None else (Related(other, f"the {what}"),)
    return error("W010", span, f"the node `{name}` has the name of a {what}", "give the node another name", related)
