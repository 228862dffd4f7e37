"""missing-file (D001)

Finds: a file of a source that is not there.
Why:   the run would stop as soon as it reads the first row.
Bad:
    data:
      source: {type: csv, path: data/digit.csv}
Good:
    data:
      source: {type: csv, path: data/digits.csv}
"""

from __future__ import annotations

from declarative_train.components.component import SourceError
from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.diagnostics.suggest import nearest, paths_start
from declarative_train.terms.span import Span


def missing_file(span: Span, problem: SourceError) -> Diagnostic:
    close = nearest(problem.name, problem.known)
    way_out = f"did you mean `{close}`?" if close is not None else problem.help or paths_start(span)
    return error("D001", span, str(problem), way_out)
