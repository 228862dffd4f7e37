"""idle-parameters (G010)

Finds: parameters that no loss term reaches, while others are trained.
Why:   they keep their start values: a head that only a metric reads, or what stands behind `detach`. They are left out
       of the optimizer in every mode, so that its weight decay does not move them either.
Bad:
    model:
      graph:
        hidden: {type: linear, out_features: 64, input: pixels}
        act: {type: relu}
        logits: {type: linear, out_features: 10}
        other: {type: linear, out_features: 10, input: act}
    objective:
      metrics: {other: {type: accuracy, input: other, target: digit}}
Good:
    model:
      graph:
        hidden: {type: linear, out_features: 64, input: pixels}
        act: {type: relu}
        logits: {type: linear, out_features: 10}
        other: {type: linear, out_features: 10, input: act}
    objective:
      losses:
        first: {type: cross_entropy, input: logits, target: digit}
        second: {type: cross_entropy, input: other, target: digit}
      metrics: {accuracy: {of: first}, other: {type: accuracy, input: other, target: digit}}
"""

from __future__ import annotations

from collections.abc import Sequence

from declarative_train.diagnostics.diagnostic import Diagnostic, warning
from declarative_train.terms.amounts import counted
from declarative_train.terms.span import Span


def idle_parameters(span: Span, node: str, names: Sequence[str]) -> Diagnostic:
    shown = ", ".join(f"`{name}`" for name in names[:3]) + (", ..." if len(names) > 3 else "")
    return warning(
        "G010",
        span,
        f"no loss reaches {counted(len(names), 'parameter')} of `{node}`: {shown}; they are never trained",
        f"let a loss read what they give, or freeze them: `model.parameters: {{{node}: {{frozen: true}}}}`",
    )
