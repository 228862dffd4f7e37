"""unknown-port (W002)

Finds: an input by a name that the component does not have.
Why:   ports have names so that a memory is never taken for a mask.
Bad:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixels}
        logits: {type: linear, out_features: 10, inputs: {y: act}}
Good:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixels}
        logits: {type: linear, out_features: 10, inputs: {x: act}}
"""

from __future__ import annotations

from collections.abc import Iterable

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.diagnostics.suggest import did_you_mean, respelt
from declarative_train.terms.span import Span


def unknown_port(span: Span, name: str, kind: str, known: Iterable[str]) -> Diagnostic:
    names = list(known)
    fixes = respelt(span, name, names)
    return error("W002", span, f"`{kind}` has no input `{name}`", did_you_mean(name, names), fixes=fixes)
