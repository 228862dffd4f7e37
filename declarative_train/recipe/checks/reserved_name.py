"""reserved-name (B002)

Finds: a param, a port or a plugin's argument named `type`, `input`, `inputs`, `repeat` or `when`.
Why:   on a node these words belong to the language; the component could never be given its own.
Bad:
    model:
      blocks:
        wide:
          params: {repeat: 32}
          inputs: [x]
          graph:
            inner: {type: linear, out_features: "{{ params.repeat }}"}
          output: inner
      graph:
        hidden: {type: wide, input: pixels}
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


def reserved_name(span: Span, name: str, what: str) -> Diagnostic:
    wanted = "type, input, inputs, repeat and when are words of the language on every node; choose another name"
    return error("B002", span, f"{what} is called `{name}`, which is a reserved word", wanted)
