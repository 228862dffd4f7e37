"""set-of-the-same-rows (D032)

Finds: a set with a source of its own that reads a file which training, or another set, reads too.
Why:   the model has seen these rows: its loss there is the loss of training under another name.
Bad:
    data:
      source: {type: csv, path: data/digits.csv}
      split: {validation: {source: {type: csv, path: data/digits.csv}}}
Good:
    data:
      source: {type: csv, path: data/digits.csv}
      split: {validation: 0.2}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.terms.span import Span


def set_of_the_same_rows(span: Span, name: str, other: str, what: str, made: Span) -> Diagnostic:
    message = f"`{name}` reads {what}, as `{other}` does"
    way_out = f"give `{name}` rows of its own: a file that nothing else reads, or a part of the source: `{name}: 0.1`"
    return error("D032", span, message, way_out, (Related(made, f"the rows of `{other}`"),))
