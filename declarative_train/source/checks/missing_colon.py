"""missing-colon (Y026)

Finds: a line among keys and values that has no `: `.
Why:   it is neither a key nor part of the value above it.
Bad:
    meta:
      owner: me
      team
      site: here
Good:
    meta:
      owner: me
      team: vision
      site: here
"""

from __future__ import annotations

import re

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span

_PAIR = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:\s*=\s*|\s+)([^\s:=].*)")  # `epochs = 2`, `epochs 2`


def missing_colon(span: Span, text: str) -> Diagnostic:
    pair = _PAIR.fullmatch(text)
    way_out = f"write `{pair[1]}: {pair[2]}`" if pair is not None else f"write `{text}: ...`"
    what = "a `:` is missing" if pair is not None else "a `:` and a value are missing"
    return error("Y026", span, f"`{text}` is no key: {what}", way_out)
