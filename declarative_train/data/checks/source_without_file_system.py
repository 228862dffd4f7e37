"""source-without-file-system (D020)

Finds: a URL whose file system is not installed or not known.
Why:   nothing can be read from it on this machine.
Bad:
    data:
      source: {type: csv, path: "nowhere://digits.csv"}
Good:
    data:
      source: {type: csv, path: data/digits.csv}
"""

from __future__ import annotations

from declarative_train.components.component import SourceError
from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def source_without_file_system(span: Span, problem: SourceError) -> Diagnostic:
    return error("D020", span, str(problem), problem.help)
