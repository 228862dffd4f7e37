"""open-input (W012)

Finds: an optional input of a block that is left open here, and read by something that cannot do without.
Why:   what is optional outside must be optional inside too.
Bad:
    model:
      blocks:
        gate:
          inputs: {x: required, mask: optional}
          graph:
            out: x * mask
          output: out
      graph:
        hidden: {type: gate, input: pixels}
        logits: {type: linear, out_features: 10}
Good:
    model:
      blocks:
        gate:
          inputs: {x: required, mask: optional}
          graph:
            out: x * mask
          output: out
      graph:
        hidden: {type: gate, inputs: {x: pixels, mask: pixels}}
        logits: {type: linear, out_features: 10}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def open_input(span: Span, name: str, block: str, reader: str) -> Diagnostic:
    message = f"`{reader}` needs `{name}`, an optional input of `{block}` that is open here"
    return error("W012", span, message, f"make `{name}` required in `{block}`, or wire it where the block is used")
