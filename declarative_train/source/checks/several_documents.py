"""several-documents (Y019)

Finds: a second YAML document in the file, after `---` or `...`.
Why:   a file is one recipe; the second document would be ignored.
Bad:
    meta: {owner: me}
    ---
    meta: {owner: you}
Good:
    meta: {owner: me}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def several_documents(span: Span) -> Diagnostic:
    return error("Y019", span, "a second document begins here; a file is one recipe", "put it into a file of its own")
