"""key-not-text (Y010)

Finds: a key that YAML reads as a number, a boolean, null, a list or a mapping.
Why:   names are text everywhere: in paths, in `--set`, in checkpoints.
Bad:
    meta:
      2026: a good year
Good:
    meta:
      "2026": a good year
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, Fix, error
from declarative_train.terms.span import Span


def key_not_text(span: Span, text: str, kind: str) -> Diagnostic:
    return error(
        "Y010",
        span,
        f"the key `{text}` is {kind}; keys are text",
        f'write `"{text}"`',
        fixes=(Fix(span, f'"{text}"', safe=True),),
    )


def key_not_scalar(span: Span, kind: str) -> Diagnostic:
    return error("Y010", span, f"{kind} stands where a key belongs; keys are text", "name the key with a word")


def empty_key(span: Span) -> Diagnostic:
    return error("Y010", span, "there is no key before the `:`", "name the key")
