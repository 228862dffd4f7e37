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

from collections.abc import Collection, Iterable

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.diagnostics.suggest import did_you_mean, nearest, respelt
from declarative_train.recipe.other_words import NOT_BUILT, letters, renamed, type_here
from declarative_train.terms.span import Span

CODE = "S005"


def unknown_type(
    span: Span, name: str, kind: str, known: Iterable[str], help: str | None = None, own: Collection[str] = ()
) -> Diagnostic:
    """`kind` is the table's word: layer, loss, optimizer; `own`: the names among `known` that a user gave."""
    names = list(known)
    word = type_here(name, names)
    if word is not None:
        way_out, fixes = f"here it is called `{word}`", renamed(span, name, word)
    else:
        way_out = NOT_BUILT.get(letters(name)) or help or did_you_mean(name, names)
        fixes = () if letters(name) in NOT_BUILT else respelt(span, name, names, closed=nearest(name, names) not in own)
    return error(CODE, span, f"there is no {kind} `{name}`", way_out, fixes=fixes)
