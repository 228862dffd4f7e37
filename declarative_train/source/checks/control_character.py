r"""control-character (Y017)

Finds: a character that cannot be seen and that YAML does not allow: NUL, escape, a lone surrogate; in a line that
       cannot be read, one that only looks like a space, such as the no-break space.
Why:   such characters come from damaged files or from pasting out of a terminal, a page or a chat.
Bad:
    # bytes: meta: {owner: a\x07b}
Good:
    meta: {owner: ab}
"""

from __future__ import annotations

from collections.abc import Sequence

from declarative_train.diagnostics.diagnostic import Diagnostic, Fix, error
from declarative_train.terms.span import Span


def control_character(spans: Sequence[Span], character: str) -> Diagnostic:
    """`character` is the first of those that stand at `spans`."""
    others = f", and {len(spans) - 1} more in this file" if len(spans) > 1 else ""
    return error(
        "Y017",
        spans[0],
        f"the character U+{ord(character):04X} cannot stand in YAML{others}",
        'take it out; inside double quotes an escape such as "\\x07" may be written',
        fixes=tuple(Fix(span, "", safe=False) for span in spans),
    )


def no_space(span: Span, character: str) -> Diagnostic:
    """One that looks like a space: pasted from a page or a chat, and no space to YAML."""
    return error(
        "Y017",
        span,
        f"the character U+{ord(character):04X} looks like a space and is none",
        "write a space",
        fixes=(Fix(span, " ", safe=False),),
    )
