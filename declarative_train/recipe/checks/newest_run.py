"""newest-run (U003)

Finds: start values taken from the folder of a run or a checkpoint.
Why:   which checkpoint of which run that is depends on the day: it is looked up when the run starts.
Bad:
    model:
      weights: runs/digits
Good:
    model:
      weights: {hidden: {path: hidden.safetensors}}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, unverified
from declarative_train.terms.span import Span


def newest_run(span: Span, path: str) -> Diagnostic:
    message = f"`{path}` is no file: of a run its best checkpoint, else its last, is looked up when the run starts"
    return unverified("U003", span, message)
