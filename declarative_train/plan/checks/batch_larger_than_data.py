"""batch-larger-than-data (R101)

Finds: a global batch of more samples than the training set has.
Why:   every step would be one partial batch; with `last_batch: drop` there would be no step at all.
Bad:
    training:
      global_batch_size: 1000000
Good:
    training:
      global_batch_size: 8
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error, warning
from declarative_train.terms.amounts import counted
from declarative_train.terms.span import Span


def batch_larger_than_data(span: Span, size: int, num_samples: int, *, drops: bool) -> Diagnostic:
    message = f"a batch of {size:,}, and the training set has {counted(num_samples, 'sample')}"
    at_most = f"set training.global_batch_size to at most {num_samples}"
    if drops:
        return error("R101", span, f"{message}: with `last_batch: drop` no step is left", at_most)
    return warning("R101", span, f"{message}: every step is one partial batch", at_most)
