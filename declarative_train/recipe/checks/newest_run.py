"""newest-run (U003)

Finds: start values taken from the folder of a run that is on another machine.
Why:   whether they fit, and which statistics and class numbers go with them, shows only where the run starts.
Bad:
    model:
      weights: s3://bucket/runs/digits
Good:
    model:
      weights: {hidden: {path: hidden.safetensors}}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, unverified
from declarative_train.terms.span import Span


def newest_run(span: Span, path: str) -> Diagnostic:
    message = f"`{path}` is not on this machine: whether its weights and statistics fit shows when the run starts"
    return unverified("U003", span, message)
