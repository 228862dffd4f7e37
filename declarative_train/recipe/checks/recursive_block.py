"""recursive-block (B004)

Finds: a block that holds itself, directly or through other blocks.
Why:   a model is opened before it runs; one that holds itself has no end.
Bad:
    model:
      blocks:
        wide:
          params: {width: 32}
          inputs: [x]
          graph:
            inner: {type: wide}
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

from collections.abc import Sequence

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def recursive_block(span: Span, chain: Sequence[str]) -> Diagnostic:
    """`chain`: the blocks from the one that is met again, to itself."""
    way = " -> ".join(f"`{name}`" for name in chain)
    return error("B004", span, f"the block `{chain[-1]}` holds itself: {way}", "`repeat` makes a chain of copies")
