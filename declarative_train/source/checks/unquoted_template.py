"""unquoted-template (Y006)

Finds: a value that begins with `{{`, or holds it inside `{ }` or `[ ]`, without quotes.
Why:   to YAML, `{` opens a mapping; the template is never seen.
Bad:
    vars: {width: 32}
    meta:
      width: {{ vars.width }}
Good:
    vars: {width: 32}
    meta:
      width: "{{ vars.width }}"
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, Fix, error
from declarative_train.terms.span import Span


def unquoted_template(span: Span, text: str, quoted: str) -> Diagnostic:
    return error(
        "Y006",
        span,
        f"the template `{text}` needs quotes: to YAML a bare `{{` opens a mapping",
        f"write `{quoted}`",
        fixes=(Fix(span, quoted, safe=True),),
    )
