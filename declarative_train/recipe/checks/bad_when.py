"""bad-when (B006)

Finds: a `when` that is neither true nor false.
Why:   a text such as `no` would count as true in most languages, and be meant as false.
Bad:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixels}
        logits: {type: linear, out_features: 10, when: no}
Good:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixels}
        logits: {type: linear, out_features: 10, when: true}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span

_WORDS = {"yes": "true", "on": "true", "no": "false", "off": "false"}  # of YAML 1.1


def bad_when(span: Span, found: str, value: object) -> Diagnostic:
    word = _WORDS.get(value.lower()) if isinstance(value, str) else None
    way_out = f"write `{word}`" if word else "a template gives one: `{{ params.deep }}`"
    return error("B006", span, f"`when` is {found}; it is `true` or `false`", way_out)
