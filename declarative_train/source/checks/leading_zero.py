"""leading-zero (Y021)

Finds: an unquoted integer that begins with a zero.
Why:   `010` is 10 in YAML 1.2, and here; in YAML 1.1, so in many tools, it is 8.
Bad:
    meta: {house: 010}
Good:
    meta: {house: 10}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, Fix, warning
from declarative_train.terms.span import Span


def leading_zero(span: Span, text: str, value: int) -> Diagnostic:
    return warning(
        "Y021",
        span,
        f"`{text}` is {value} here, but octal to tools that read YAML 1.1",
        f'write `{value}`, or `"{text}"` if it is text',
        fixes=(Fix(span, str(value), safe=True),),
    )
