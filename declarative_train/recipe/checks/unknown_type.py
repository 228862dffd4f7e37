"""unknown-type (S005)

Finds: a `type` that names no component of the kind that belongs there.
Why:   `type` picks the component; the nearest known name is usually the one that was meant.
Bad:
    model:
      graph:
        hidden: {type: liner, out_features: 32, input: pixels}
        logits: {type: linear, out_features: 10}
Good:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixels}
        logits: {type: linear, out_features: 10}
"""

from __future__ import annotations

from collections.abc import Iterable

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.diagnostics.suggest import did_you_mean
from declarative_train.recipe.other_words import TYPES
from declarative_train.terms.span import Span


def unknown_type(span: Span, name: str, kind: str, known: Iterable[str], help: str | None = None) -> Diagnostic:
    """`kind` is the table's word: layer, loss, optimizer."""
    names = list(known)
    word = TYPES.get(name.lower().replace("_", ""))
    way_out = help or (f"here it is called `{word}`" if word in names else did_you_mean(name, names))
    return error("S005", span, f"there is no {kind} `{name}`", way_out)
