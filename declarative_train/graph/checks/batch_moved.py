"""batch-moved (G003)

Finds: a node whose result has the batch in another place than dimension 0.
Why:   the samples of a batch are shared out over ranks and microbatches along dimension 0; a node that mixes them up
       trains on other data in every layout.
Bad:
    model:
      graph:
        pairs: pixels + unsqueeze(pixels, 1)
        hidden: {input: pairs}
Good:
    model:
      graph:
        pairs: unsqueeze(pixels, 2) + unsqueeze(pixels, 1)
        flat: {type: flatten, input: pairs}
        hidden: {input: flat}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def batch_moved(span: Span, name: str, found: str) -> Diagnostic:
    return error("G003", span, f"`{name}`: {found}", "every node keeps the batch as dimension 0, and nowhere else")
