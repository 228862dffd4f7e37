"""shadowed-type (B001)

Finds: a block or a plugin's layer that has the name of a type that is already there.
Why:   the same recipe would mean something else with and without it; a shipped type is never replaced.
Bad:
    model:
      blocks:
        linear:
          params: {width: 32}
          inputs: [x]
          graph:
            inner: {type: relu}
          output: inner
      graph:
        hidden: {type: linear, input: pixels}
        logits: {type: linear, out_features: 10}
Good:
    model:
      blocks:
        wide:
          params: {width: 32}
          inputs: [x]
          graph:
            inner: {type: linear, out_features: "{{ params.width }}"}
          output: inner
      graph:
        hidden: {type: wide, input: pixels}
        logits: {type: linear, out_features: 10}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def shadowed_type(span: Span, name: str, what: str, there: str) -> Diagnostic:
    """`what` is declared (block, layer), `there` is what has the name."""
    return error("B001", span, f"the {what} `{name}` has the name of {there}", "give it another name")
