"""interleaved-windows (D023)

Finds: windows over rows whose `sort` column holds the same value more than once, without `by`.
Why:   two meters measured at the same time, for example, then stand row by row between each other, and every window
       jumps from one to the other: `by` names the column that tells them apart.
Bad:
    data:
      source: {path: data/days.csv}
      window: {length: 2, sort: x}
Good:
    data:
      source: {path: data/days.csv}
      window: {length: 2, sort: iso}
"""

from __future__ import annotations

import numpy as np

from declarative_train.components.component import Table
from declarative_train.components.splits.last import codes
from declarative_train.diagnostics.diagnostic import Diagnostic, warning
from declarative_train.terms.span import Span

_LOOKED_AT = 100_000  # rows


def interleaved_windows(span: Span, table: Table, column: str) -> Diagnostic | None:
    """None where no two of the rows looked at have the same value."""
    values = codes(table.read([column], slice(0, _LOOKED_AT))[column])
    found, counts = np.unique(values, return_counts=True)
    if len(found) == len(values):
        return None
    often = int(np.argmax(counts))
    return warning(
        "D023",
        span,
        f"`{column}` is {found[often]} in {counts[often]:,} rows, and windows follow it without `by`",
        "say with `by` which column tells the series apart",
    )
