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

from collections.abc import Collection, Iterable

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.diagnostics.suggest import nearest, respelt
from declarative_train.source.node import Entry


def null_removes_nothing(entry: Entry, where: str, known: Iterable[str], beside: Collection[str] = ()) -> Diagnostic:
    """`known`: the keys that are there to be removed; `beside`: those of the file that wants to."""
    name, keys = entry.name, list(known)
    close, fixes = nearest(name, keys), respelt(entry.key.span, name, keys, taken=beside)
    way_out = f"did you mean `{close}`?" if close else "leave the key out: `null` only removes what a base says"
    message = f"`{name}: null` removes nothing: {where} has no such key so far"
    return error("M005", entry.value.span, message, way_out, fixes=fixes)
