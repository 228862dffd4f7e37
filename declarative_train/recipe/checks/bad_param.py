"""bad-param (B009)

Finds: a param of a block whose declaration cannot be understood.
Why:   the default gives a param its type; without one the type must be said.
Bad:
    model:
      blocks:
        wide:
          params: {width: {min: 1}}
          inputs: [x]
          graph:
            inner: {type: linear, out_features: "{{ params.width }}"}
          output: inner
      graph:
        hidden: {type: wide, input: pixels}
        logits: {type: linear, out_features: 10}
Good:
    model:
      blocks:
        wide:
          params: {width: {type: int, min: 1, default: 32}}
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


def bad_param(span: Span, name: str, problem: str, help: str | None = None) -> Diagnostic:
    wanted = "write a default (`width: 64`), or `{type: int, min: 1}` where there is none"
    return error("B009", span, f"the param `{name}` {problem}", help or wanted)
