"""unreadable-source (D003)

Finds: a file that is not what its source reads: torn, empty, of another kind, or closed to us.
Why:   a table that is read in part is another table.
Bad:
    data:
      source: {type: parquet, path: data/digits.csv}
Good:
    data:
      source: {type: csv, path: data/digits.csv}
"""

from __future__ import annotations

from declarative_train.components.component import SourceError
from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def unreadable_source(span: Span, problem: SourceError) -> Diagnostic:
    return error("D003", span, str(problem), problem.help)
