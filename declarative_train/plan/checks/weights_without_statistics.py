"""weights-without-statistics (R126)

Finds: weights of a run whose checkpoint does not say how its fields were read: an earlier dtrain wrote it, and it no
       longer lies in the folder of its run.
Why:   means, standard deviations and class numbers are made anew from the training rows. Where these are others than
       the run's, the weights see other numbers than those that they were trained on.
Bad:
    data:
      fields:
        pixels: {columns: "p*", normalize: standard}
    model: {weights: bare}
Good:
    data:
      fields:
        pixels: {columns: "p*", normalize: standard}
    model: {weights: {path: bare, statistics: data}}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, warning
from declarative_train.terms.span import Span


def weights_without_statistics(span: Span, path: str) -> Diagnostic:
    message = f"the checkpoint in {path} does not hold its run's statistics: they are made anew of the training rows"
    way_out = "take the checkpoint in its run's folder; or, if new ones are meant, write `statistics: data`"
    return warning("R126", span, message, way_out)
