"""explicit-tag (Y014)

Finds: a YAML tag, such as `!!int` or `!name`.
Why:   tags are not part of the language: the schema knows the type of each value.
Bad:
    training:
      steps: !!int 10
Good:
    training:
      steps: 10
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def explicit_tag(span: Span, tag: str, *, text: str | None) -> Diagnostic:
    """`text`: the whole value, when it may have been meant as text that begins with `!`."""
    way_out = f"take `{tag}` out"
    if text is not None:
        way_out += f', or quote the text: `"{text}"`'
    return error("Y014", span, f"`{tag}` is a YAML tag, which recipes do not have", way_out)
