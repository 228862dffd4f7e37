"""unquoted-text (Y007)

Finds: a value that means something else to YAML unless it is quoted: one that begins with `* & ! % @ | > [ {` or a
       backtick and goes on as text, or one that contains `: `.
Why:   these characters open aliases, anchors, tags, lists and mappings.
Bad:
    meta:
      note: lr: 0.1 was too high
Good:
    meta:
      note: "lr: 0.1 was too high"
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, Fix, error
from declarative_train.terms.span import Span


def unquoted_text(span: Span, what: str, quoted: str) -> Diagnostic:
    """`what` says which part of the text is special: "begins with `*`". An anchor or alias may have been meant."""
    is_text = not quoted.startswith(('"&', '"*', "'&", "'*"))
    return error(
        "Y007",
        span,
        f"this text {what}, and so needs quotes",
        f"write `{quoted}`",
        fixes=(Fix(span, quoted, safe=is_text),),
    )
