"""unused-param (W015)

Finds: a param of a block that no template of the block reads.
Why:   who sets it believes that it does something; most often a number was left in the block's body.
Bad:
    model:
      blocks:
        layer: {params: {width: 64}, inputs: [x], graph: {out: {type: linear, out_features: 64}}, output: out}
      graph:
        hidden: {type: layer, width: 32, input: pixels}
Good:
    model:
      blocks:
        layer:
          params: {width: 64}
          inputs: [x]
          graph: {out: {type: linear, out_features: "{{ params.width }}"}}
          output: out
      graph:
        hidden: {type: layer, width: 32, input: pixels}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, warning
from declarative_train.terms.span import Span


def unused_param(span: Span, name: str, block: str) -> Diagnostic:
    reason = f"the block `{block}` never reads its param `{name}`"
    return warning("W015", span, reason, f"use `{{{{ params.{name} }}}}` in the block, or remove the param")
