"""circular-vars (T004)

Finds: a value of `vars` that needs itself, directly or through others.
Why:   it has no value.
Bad:
    vars:
      width: "{{ vars.heads * 64 }}"
      heads: "{{ vars.width // 64 }}"
Good:
    vars:
      width: "{{ vars.heads * 64 }}"
      heads: 4
"""

from __future__ import annotations

from collections.abc import Sequence

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def circular_vars(span: Span, chain: Sequence[str]) -> Diagnostic:
    way = " -> ".join(f"`{name}`" for name in chain)
    return error("T004", span, f"these vars go in a circle: {way}", "give one of them a value of its own")
