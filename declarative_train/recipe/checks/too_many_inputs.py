"""too-many-inputs (W011)

Finds: more inputs in a list than the component takes.
Why:   a list binds inputs in order; those left over would be dropped.
Bad:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixels}
        logits: {type: linear, out_features: 10, inputs: [act, pixels]}
Good:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixels}
        logits: {type: linear, out_features: 10, inputs: [act]}
"""

from __future__ import annotations

from collections.abc import Sequence

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def too_many_inputs(span: Span, kind: str, ports: Sequence[str]) -> Diagnostic:
    takes = f"takes {len(ports)}: {', '.join(ports)}" if ports else "takes none"
    return error("W011", span, f"one input too many: `{kind}` {takes}", "`add` and `concat` join several tensors")
