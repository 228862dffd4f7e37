"""weights-not-found (U105)

Finds: a file of start values that is not there.
Why:   every rank would fail before its first step.
Bad:
    model:
      weights: {hidden: {path: no_such_file.safetensors}}
Good:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixels}
        logits: {type: linear, out_features: 10}
"""

from __future__ import annotations

from declarative_train.components.datasets.files import shown
from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.diagnostics.suggest import paths_start
from declarative_train.terms.span import Span


def weights_not_found(span: Span, path: str) -> Diagnostic:
    return error("U105", span, f"there is no file or run at `{shown(path)}`", paths_start(span))
