"""unclosed-bracket (Y004)

Finds: a `[` or `{` that is never closed, is closed by the wrong bracket, or a `]` or `}` that closes nothing.
Why:   the lines after it are read as part of the list or mapping.
Bad:
    meta:
      sizes: [1, 2
      owner: me
Good:
    meta:
      sizes: [1, 2]
      owner: me
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.terms.span import Span

CLOSERS = {"[": "]", "{": "}"}


def unclosed_bracket(span: Span, bracket: str) -> Diagnostic:
    closer = CLOSERS[bracket]
    return error("Y004", span, f"the `{bracket}` is never closed", f"add `{closer}` where the value ends")


def wrong_bracket(span: Span, found: str, opened: Span, bracket: str) -> Diagnostic:
    return error(
        "Y004",
        span,
        f"`{found}` cannot close `{bracket}`",
        f"write `{CLOSERS[bracket]}`",
        (Related(opened, "opened here"),),
    )


def closes_nothing(span: Span, bracket: str) -> Diagnostic:
    return error("Y004", span, f"the `{bracket}` closes nothing", f"take the `{bracket}` out, or open it before")
