"""unused-input (W016)

Finds: an input of a block that none of its nodes reads.
Why:   what is wired to it has no effect: a mask that is handed in and never applied trains on the padding.
Bad:
    model:
      blocks:
        layer: {inputs: [x, mask], graph: {out: {type: linear, out_features: 64, input: x}}, output: out}
      graph:
        hidden: {type: layer, inputs: [pixels, pixels]}
Good:
    model:
      blocks:
        layer: {inputs: [x], graph: {out: {type: linear, out_features: 64}}, output: out}
      graph:
        hidden: {type: layer, input: pixels}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, warning
from declarative_train.terms.span import Span


def unused_input(span: Span, name: str, block: str) -> Diagnostic:
    return warning("W016", span, f"no node of the block `{block}` reads its input `{name}`", "read it, or remove it")
