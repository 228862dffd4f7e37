"""too-many-nodes (Y012)

Finds: a file that holds, or that its aliases blow up to, more than 200,000 values.
Why:   a few aliases of aliases make billions of values out of ten lines.
Bad:
    meta:
      a: &a [x, x, x, x, x, x, x, x, x, x]
      b: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a, *a]
      c: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b, *b]
      d: &d [*c, *c, *c, *c, *c, *c, *c, *c, *c, *c]
      e: [*d, *d, *d, *d, *d, *d, *d, *d, *d, *d, *d, *d, *d, *d, *d, *d, *d, *d, *d]
Good:
    meta:
      team: &team vision
      owner: *team
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def too_many_nodes(span: Span, limit: int, *, alias: bool) -> Diagnostic:
    how = "with this alias the file grows to" if alias else "the file holds"
    return error("Y012", span, f"{how} more than {limit:,} values", "put tables of data into a file of their own")
