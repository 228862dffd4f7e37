"""lone-sample (G012)

Finds: a node or loss that compares samples, such as `batch_norm` or `info_nce`, with one sample at a time to look at.
Why:   one number less its own mean is 0, and one candidate is always the right one: nothing is learned.
Bad:
    model:
      graph:
        hidden: {type: linear, out_features: 64, input: pixels}
        act: {type: batch_norm}
        logits: {type: linear, out_features: 10}
    training: {global_batch_size: 2}
Good:
    model:
      graph:
        hidden: {type: linear, out_features: 64, input: pixels}
        act: {type: batch_norm, over: 12 samples}
        logits: {type: linear, out_features: 10}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def lone_sample(span: Span, name: str) -> Diagnostic:
    return error(
        "G012",
        span,
        f"`{name}` looks at one sample at a time: compared with nothing, it gives the same for all",
        "`over: 16 samples`, or larger microbatches",
    )
