"""group-in-two-sets (D021)

Finds: a set of whole groups, some of which also have rows in a set that is divided in another way: by value, as the
       last rows, or in groups of another column.
Why:   a group is then in both sets: a model that has seen one set knows part of the other. Random sets are taken from
       the rows that whole groups leave, so this cannot happen with them.
Diff:
    data:
      split:
-       test: {type: where, column: p20, at_least: 14}
+       test: {type: where, column: label, in: [8, 9]}
        validation: {type: grouped, fraction: 0.2, column: label}
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from declarative_train.components.data import Split, Table
from declarative_train.components.splits.shares import codes
from declarative_train.core.diagnostics.diagnostic import Diagnostic, Related, warning
from declarative_train.core.span import Span
from declarative_train.data.rows import SetRows
from declarative_train.data.splitting import TRAINING


def check(
    table: Table, rows: Mapping[str, SetRows], splits: Mapping[str, Split], span: Callable[[str], Span]
) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each pair of such sets; `rows` are the sets that are divided from `table`."""
    grouped = {name: str(split.columns[0]) for name, split in splits.items() if split.type == "grouped"}
    for name, column in grouped.items():
        # training is what is left; sets by chance are cut from what whole groups leave
        others = [other for other in rows if other not in (TRAINING, name) and not splits[other].cuts_singly]
        others = [other for other in others if grouped.get(other) != column]
        own = _groups(table, rows[name], column) if others else np.empty(0)
        for other in others:
            shared = np.intersect1d(own, _groups(table, rows[other], column))
            if len(shared):
                yield warning(
                    "D021",
                    span(f"data.split.{name}"),
                    f"{len(shared):,} of the {len(own):,} groups of `{name}` have rows in `{other}` too, such as "
                    f"`{column}` {shared[0]}",
                    f"cut `{other}` by `{column}` as well: `type: grouped`, or `type: where` with `column: {column}`",
                    (Related(span(f"data.split.{other}"), f"`{other}` is cut here"),),
                )


def _groups(table: Table, rows: SetRows, column: str) -> np.ndarray:
    return np.unique(codes(table.read([column], rows.between(0, len(rows)))[column]))
