"""unknown-anchor (Y011)

Finds: an alias `*name` for which no anchor `&name` stands above.
Why:   an alias repeats a value that was written before, in the same file.
Bad:
    meta:
      owner: *team
Good:
    meta:
      team: &team vision
      owner: *team
"""

from __future__ import annotations

from collections.abc import Iterable

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.diagnostics.suggest import did_you_mean, respelt
from declarative_train.terms.span import Span


def unknown_anchor(span: Span, name: str, known: Iterable[str]) -> Diagnostic:
    names = list(known)
    way_out = did_you_mean(name, names) if names else f'if the text `*{name}` is meant, quote it: `"*{name}"`'
    fixes = respelt(span.within(1, len(name)), name, names)
    return error("Y011", span, f"there is no anchor `&{name}` above", way_out, fixes=fixes)


def anchor_in_itself(span: Span, name: str) -> Diagnostic:
    return error("Y011", span, f"`*{name}` stands inside `&{name}`, which would never end", "write the value out")
