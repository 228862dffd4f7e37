"""unknown-weights-node (U004)

Finds: start values for a node that the model does not have.
Why:   nothing would be loaded, and the model would start from random numbers.
Bad:
    model:
      weights: {hiden: {path: hidden.safetensors}}
Good:
    model:
      weights: {hidden: {path: hidden.safetensors}}
"""

from __future__ import annotations

from collections.abc import Iterable

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.diagnostics.suggest import did_you_mean, respelt
from declarative_train.terms.span import Span


def unknown_weights_node(span: Span, name: str, known: Iterable[str]) -> Diagnostic:
    names = list(known)
    message = f"there is no node `{name}` to give weights to"
    return error("U004", span, message, did_you_mean(name, names), fixes=respelt(span, name, names))
