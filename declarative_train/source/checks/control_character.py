r"""control-character (Y017)

Finds: a character that cannot be seen and that YAML does not allow: NUL, escape, a lone surrogate.
Why:   such characters come from damaged files or from pasting out of a terminal.
Bad:
    # bytes: meta: {owner: a\x07b}
Good:
    meta: {owner: ab}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, Fix, error
from declarative_train.terms.span import Span


def control_character(span: Span, character: str, more: int) -> Diagnostic:
    others = f", and {more} more in this file" if more else ""
    return error(
        "Y017",
        span,
        f"the character U+{ord(character):04X} cannot stand in YAML{others}",
        'take it out; inside double quotes an escape such as "\\x07" may be written',
        fixes=(Fix(span, "", safe=False),),
    )
