"""empty-file (Y018)

Finds: a file without any key: empty, or nothing but comments.
Why:   it is no recipe, and overrides nothing.
Bad:
    # whole file
    # a story, but no recipe
Good:
    meta: {owner: me}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def empty_file(span: Span) -> Diagnostic:
    return error("Y018", span, "the file holds no recipe", "`dtrain init` writes a first one")
