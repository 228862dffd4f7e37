"""circular-extends (M002)

Finds: a file that extends itself, directly or through other files.
Why:   there is no first file to begin with.
Bad:
    # file: recipe.yaml
    extends: recipe.yaml
Good:
    meta: {owner: me}
"""

from __future__ import annotations

from collections.abc import Sequence

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def circular_extends(span: Span, chain: Sequence[str]) -> Diagnostic:
    """`chain`: the files from the first one that is met again, to itself."""
    way = " -> ".join(f"`{path}`" for path in chain)
    return error("M002", span, f"`extends` goes in a circle: {way}", "take one of these `extends` out")


def extends_too_long(span: Span, limit: int) -> Diagnostic:
    return error("M002", span, f"more than {limit} files are read through `extends`", "extend fewer files")
