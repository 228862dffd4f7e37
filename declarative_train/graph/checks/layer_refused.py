"""layer-refused (G002)

Finds: a layer (mostly a plugin's) that torch cannot build or run for what arrives at its inputs; the message is
       torch's own.
Why:   it would fail in the first step, on every rank.
Bad:
    model:
      graph:
        hidden: {type: linear, out_features: 1000000000000000000, input: pixels}
Good:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixels}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.terms.span import Span


def layer_refused(span: Span, type: str, said: str, made: tuple[Related, ...] = ()) -> Diagnostic:
    return error("G002", span, f"`{type}` does not take these inputs: {said}", related=made)
