"""set-without-class (D033)

Finds: a set in which a class of the target has no row, though it has some in another set.
Why:   f1, recall and auroc of that class are 1, 0 or nan there, whatever the model says; a class without a training row
       is never learned.
Bad:
    data:
      split: {validation: {type: where, column: label, in: [3, 8]}}
Good:
    data:
      split: {validation: {type: stratified, fraction: 0.2, column: label}}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, warning
from declarative_train.terms.span import Span


def set_without_class(span: Span, name: str, field: str, classes: str, way_out: str) -> Diagnostic:
    return warning("D033", span, f"`{name}` has no row whose `{field}` is {classes}", way_out)
