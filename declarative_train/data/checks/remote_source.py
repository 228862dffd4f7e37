"""remote-source (D015)

Finds: a source on another machine, when nothing but the recipe is looked at.
Why:   its columns, types and rows can only be known by reading it: `dtrain plan` and `dtrain run` do.
Bad:
    data:
      source: {type: parquet, path: "s3://corpus/*.parquet"}  # not wrong: only not looked at by lint
Good:
    data:
      source: {type: csv, path: data/digits.csv}  # a copy on this machine is looked at
"""

from __future__ import annotations

from declarative_train.components.datasets.files import shown
from declarative_train.diagnostics.diagnostic import Diagnostic, unverified
from declarative_train.terms.span import Span


def remote_source(span: Span, path: str) -> Diagnostic:
    return unverified(
        "D015",
        span,
        f"{shown(path)} is remote and was not looked at",
        "`dtrain plan` reads its columns and rows",
    )
