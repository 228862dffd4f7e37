"""missing-space (Y022)

Finds: a `:` without a space after it, where a key and its value were meant.
Why:   `epochs:3` is one text to YAML; a key ends with `: `.
Bad:
    meta:
      owner:me
      team: vision
Good:
    meta:
      owner: me
      team: vision
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, Fix, error
from declarative_train.terms.span import Span


def missing_space(span: Span, text: str) -> Diagnostic:
    """`text` is the key, the colon and the value, on one line."""
    key, _, value = text.partition(":")
    colon = span.within(len(key))
    return error(
        "Y022",
        span,
        f"`{text}` is one text: a space is missing after the `:`",
        f"write `{key}: {value}`",
        fixes=(Fix(colon, ": ", safe=False),),
    )
