"""different-columns (D004)

Finds: files of one source whose columns are not the same, or a file with two columns of one name.
Why:   rows of such files do not make one table.
Bad:
    data:
      source: {type: csv, path: [data/digits.csv, data/people.csv]}
Good:
    data:
      source: {type: csv, path: [data/digits.csv]}
"""

from __future__ import annotations

from declarative_train.components.component import SourceError
from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def different_columns(span: Span, problem: SourceError) -> Diagnostic:
    return error("D004", span, str(problem), problem.help or "name only files with the same columns")
