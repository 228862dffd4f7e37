r"""not-utf8 (Y016)

Finds: bytes that are not UTF-8.
Why:   in another encoding the same bytes are other letters.
Bad:
    # bytes: meta: {owner: Ren\xe9}
Good:
    meta: {owner: René}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def not_utf8(span: Span, byte: int) -> Diagnostic:
    return error("Y016", span, f"the byte 0x{byte:02x} is not UTF-8", "save the file as UTF-8")


def another_encoding(span: Span, encoding: str) -> Diagnostic:
    return error("Y016", span, f"the file is {encoding}; recipes are UTF-8", "save the file as UTF-8")
