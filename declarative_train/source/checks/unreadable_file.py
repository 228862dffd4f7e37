"""unreadable-file (Y023)

Finds: a recipe that is not there, is a folder, or cannot be opened.
Why:   nothing can be said of a file that cannot be read.
Bad:
    # no file
Good:
    meta: {owner: me}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def unreadable_file(span: Span, path: str, reason: str, help: str | None = None) -> Diagnostic:
    return error("Y023", span, f"`{path}` {reason}", help)


def file_too_large(span: Span, path: str, limit_bytes: int) -> Diagnostic:
    return error(
        "Y023",
        span,
        f"`{path}` is larger than {limit_bytes // 1_000_000} MB, which no recipe is",
        "put tables of data into a file of their own",
    )
