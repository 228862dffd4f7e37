"""sorted-as-text (D022)

Finds: rows that are put in order by a column of text which text does not order: dates that do not begin with the year,
       numbers of different lengths.
Why:   text is compared letter by letter, so that 31/01 comes after 01/12, and 10 before 9: the last rows are not the
       latest ones, and windows run over rows that do not follow each other.
Bad:
    data:
      source: {path: data/days.csv}
      split: {validation: {type: last, fraction: 0.25, sort: day}}
Good:
    data:
      source: {path: data/days.csv}
      split: {validation: {type: last, fraction: 0.25, sort: iso}}
"""

from __future__ import annotations

import re

import numpy as np

from declarative_train.components.component import Table
from declarative_train.diagnostics.diagnostic import Diagnostic, warning
from declarative_train.terms.span import Span

_ISO = re.compile(r"\d{4}-\d\d-\d\d(?!\d)")
_MONTH = re.compile(r"(?i)\b(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\b")
_LOOKED_AT = 100_000  # rows


def sorted_as_text(span: Span, table: Table, column: str) -> Diagnostic | None:
    """None where text is ordered as what it stands for is."""
    found = table.columns[column]
    if found.dtype != "object" or found.shape:
        return None
    values = table.read([column], slice(0, _LOOKED_AT))[column]
    present = np.unique(np.asarray([str(value) for value in values if value is not None], str)).tolist()
    if len(present) < 2 or all(_ISO.match(value) for value in present):
        return None
    shapes = {re.sub(r"\d", "0", value) for value in present}
    runs = re.findall("0+", max(shapes, key=len))
    is_date = any(_MONTH.search(value) for value in present) and bool(runs)
    if not runs or (len(shapes) == 1 and (len(runs) == 1 or len(runs[0]) >= 4) and not is_date):
        return None
    return warning(
        "D022",
        span,
        f"`{column}` is text, such as `{present[0]:.40}` and `{present[-1]:.40}`, and is sorted letter by letter",
        "write dates as 2024-01-31, numbers as numbers",
    )
