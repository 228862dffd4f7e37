"""empty-glob (D002)

Finds: a glob that matches no file.
Why:   a source without files has no rows, and that is hardly what was meant.
Bad:
    data:
      source: {type: csv, path: "data/*.tsv"}
Good:
    data:
      source: {type: csv, path: "data/digits*.csv"}
"""

from __future__ import annotations

from declarative_train.components.component import SourceError
from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.diagnostics.suggest import paths_start
from declarative_train.terms.span import Span


def empty_glob(span: Span, problem: SourceError) -> Diagnostic:
    return error("D002", span, str(problem), problem.help or f"{paths_start(span)}; `**` goes through folders")
