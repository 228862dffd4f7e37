"""unknown-copy (W013)

Finds: a reference to a copy of a node that is not repeated, or not so often.
Why:   copies are counted from 0, so the last of 4 is 3.
Bad:
    model:
      graph:
        hidden: {type: linear, out_features: 64, repeat: 2, input: pixels}
        act: {type: relu, input: hidden.2}
Good:
    model:
      graph:
        hidden: {type: linear, out_features: 64, repeat: 2, input: pixels}
        act: {type: relu, input: hidden.1}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.amounts import counted
from declarative_train.terms.span import Span


def unknown_copy(span: Span, name: str, num_copies: int | None) -> Diagnostic:
    if num_copies is None:
        return error("W013", span, f"`{name}` is not repeated and has no numbered copies", f"write `{name}`")
    return error("W013", span, f"`{name}` has {counted(num_copies, 'copy')}, `{name}.0` to `{name}.{num_copies - 1}`")
