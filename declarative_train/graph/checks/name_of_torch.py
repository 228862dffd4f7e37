"""name-of-torch (G006)

Finds: a node named like something that every torch module has, such as `forward` or `train`, or with a word of
       Python's own, such as `in`.
Why:   the node becomes a member of a module under its own name, where it would hide torch's; and the code that torch
       writes for the graph could not name it.
Bad:
    model:
      graph:
        half: {type: linear, out_features: 32, input: pixels}
        hidden: {input: half}
Good:
    model:
      graph:
        half_width: {type: linear, out_features: 32, input: pixels}
        hidden: {input: half_width}
"""

from __future__ import annotations

from functools import cache
from keyword import iskeyword

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


@cache
def _taken() -> frozenset[str]:
    from torch import fx, nn

    return frozenset(dir(fx.GraphModule(nn.Module(), fx.Graph())))


def is_name_of_torch(name: str) -> bool:
    """`name` may be that of a copy: `half.0`."""
    first = name.partition(".")[0]
    return iskeyword(first) or first in _taken()


def name_of_torch(span: Span, name: str) -> Diagnostic:
    name = name.partition(".")[0]
    reason = "it is a word of Python" if iskeyword(name) else f"every torch module has a `{name}`"
    return error("G006", span, f"a node cannot be called `{name}`: {reason}", f"such as `{name}_node`")
