"""null-removes-nothing (M005)

Finds: a `null` for a key that no file before this one has.
Why:   `null` removes what a base says; where there is nothing, the name is usually misspelt.
Bad:
    training:
      clip_grad_normm: null
Good:
    meta: {owner: me}
"""

from __future__ import annotations

from collections.abc import Iterable

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.diagnostics.suggest import nearest
from declarative_train.terms.span import Span


def null_removes_nothing(span: Span, name: str, where: str, known: Iterable[str]) -> Diagnostic:
    """`known`: the keys that are there to be removed."""
    close = nearest(name.rpartition(".")[2], known)
    way_out = f"did you mean `{close}`?" if close else "leave the key out: `null` only removes what a base says"
    return error("M005", span, f"`{name}: null` removes nothing: {where} has no such key so far", way_out)
