"""unknown-output (W003)

Finds: a reference to an output that the node does not have.
Why:   only a component's outputs can be read; what happens inside of it stays there.
Bad:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixels}
        logits: {type: linear, out_features: 10, input: act.memory}
Good:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixels}
        logits: {type: linear, out_features: 10, input: act}
"""

from __future__ import annotations

from collections.abc import Iterable

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.diagnostics.suggest import did_you_mean, respelt
from declarative_train.terms.span import Span


def unknown_output(
    span: Span, message: str, known: Iterable[str], name: str = "", help: str | None = None
) -> Diagnostic:
    """`span`: of the whole reference, `name` at its end."""
    names = list(known)
    at = Span(span.path, span.line, span.end_column - len(name), span.end_line, span.end_column)
    fixes = () if help else respelt(at, name, names)
    return error("W003", span, message, help or did_you_mean(name, names), fixes=fixes)
