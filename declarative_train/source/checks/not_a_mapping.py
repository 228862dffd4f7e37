"""not-a-mapping (Y020)

Finds: a file that is a list or a text instead of keys and values.
Why:   a recipe is a mapping of sections.
Bad:
    # whole file
    - training
    - data
Good:
    meta: {owner: me}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def not_a_mapping(span: Span, kind: str) -> Diagnostic:
    return error("Y020", span, f"the file is {kind}; it takes keys and values", "begin with a key such as `name: ...`")
