"""weights-do-not-fit (U106)

Finds: a file of start values whose names or shapes are not those of the parameters that it is for.
Why:   every rank would fail before its first step. `rename: {"head.": null}` leaves out what the model does not have.
Bad:
    model:
      weights: {hidden: {path: data/backbone.safetensors}}
Good:
    model:
      graph:
        hidden: {type: linear, out_features: 8, input: pixels}
      weights: {hidden: {path: data/backbone.safetensors, rename: {"head.": null}}}
"""

from __future__ import annotations

from declarative_train.components.datasets.files import shown
from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def weights_do_not_fit(span: Span, path: str, problem: str, way_out: str | None) -> Diagnostic:
    return error("U106", span, f"{shown(path)} {problem}", way_out)
