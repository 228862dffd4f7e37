"""input-and-inputs (W004)

Finds: `input` and `inputs` on one node.
Why:   `input: a` is short for `inputs: [a]`; which of the two counts would be a guess.
Bad:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixels}
        logits: {type: linear, out_features: 10, input: act, inputs: [act]}
Good:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixels}
        logits: {type: linear, out_features: 10, input: act}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.terms.span import Span


def input_and_inputs(span: Span, other: Span) -> Diagnostic:
    related = (Related(other, "the other one"),)
    message = "`inputs` stands beside `input`; a node has one of them"
    return error("W004", span, message, "join them in `inputs`", related)
