"""displaced-loss (W017)

Finds: `losses` in a derived recipe that take the place of the `loss` of its base, unsaid.
Why:   `loss` is the short form of `losses` with one term, so the two do not add up: a term that was to be added trains
       alone.
Bad:
    objective:
      losses: {other: {type: cross_entropy, input: logits, target: digit}}
Good:
    objective:
      losses: {loss: {}, other: {type: cross_entropy, input: logits, target: digit, weight: 0.5}}
      metrics: {accuracy: {of: loss}}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, warning
from declarative_train.source.document import Document
from declarative_train.source.node import Mapping

_LOSS, _LOSSES = ("objective", "loss"), ("objective", "losses")


def check(document: Document) -> Iterator[Diagnostic]:
    now = document.find(_LOSSES)
    if not isinstance(now, Mapping) or now.alone or document.find(_LOSS) is not None:
        return  # a `loss` that displaces several is meant to; both in one file have a rule of their own
    for gone in document.dropped:
        if gone.path == _LOSSES and gone.reason == "alternative":
            yield warning(
                "W017",
                gone.by,
                "these take the place of the `loss` of the base",
                "`losses: {loss: {}, ...}` keeps it beside them; `loss: null` says that it is not wanted",
                (Related(gone.span, "the loss of the base"),),
            )
