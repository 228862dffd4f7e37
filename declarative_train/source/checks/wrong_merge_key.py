"""wrong-merge-key (Y013)

Finds: a merge key `<<` whose value is not a mapping, or a list of mappings.
Why:   only keys can be merged.
Bad:
    meta:
      sizes: &sizes [1, 2]
      more: {<<: *sizes}
Good:
    meta:
      sizes: &sizes {a: 1, b: 2}
      more: {<<: *sizes}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def wrong_merge_key(span: Span, kind: str) -> Diagnostic:
    return error("Y013", span, f"`<<` merges {kind}; it takes a mapping", "give it an alias of a mapping: `<<: *name`")
