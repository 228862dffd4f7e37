"""bad-name (B003)

Finds: a node, block, param, input or output whose name is not `[a-z][a-z0-9_]*`.
Why:   digits are free for copies, dots for paths, and every name must be legal in an expression.
Bad:
    model:
      graph:
        Hidden-1: {type: linear, out_features: 32, input: hidden}
Good:
    model:
      graph:
        hidden_1: {type: linear, out_features: 32, input: hidden}
        act: {input: hidden_1}
"""

from __future__ import annotations

from keyword import iskeyword

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def bad_name(span: Span, name: str, what: str) -> Diagnostic:
    kept = (c if c.isascii() and c.isalnum() else "_" for c in name.lower())
    close = "".join(kept).lstrip("0123456789_")
    close += "_node" * iskeyword(close)  # which G006 would refuse
    wanted = "names are lower-case letters, digits and `_`, a letter first" + (f": `{close}`" if close else "")
    return error("B003", span, f"{what} cannot be called `{name}`", wanted)
