"""two-orders-of-last (R130)

Finds: two sets that are both cut as the last rows, by different columns.
Why:   what is last by one column is in the middle by the other: rows that train come after rows that are held back, so
       that the sets no longer measure how well the future is predicted.
Bad:
    data:
      split:
        validation: {type: last, fraction: 0.1, sort: label}
        test: {type: last, fraction: 0.1}
Good:
    data:
      split:
        validation: {type: last, fraction: 0.1, sort: label}
        test: {type: last, fraction: 0.1, sort: label}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.recipe.draft import Draft


def check(draft: Draft) -> Iterator[Diagnostic]:
    data = draft.data
    if data is None:
        return
    window = None if data.window is None else data.window.sort
    orders = {
        name: getattr(split, "sort", None) or window for name, split in data.split.items() if split.type == "last"
    }
    first = next(iter(orders), None)
    for name, order in orders.items():
        if first is None or order == orders[first]:
            continue
        yield error(
            "R130",
            draft.span(f"data.split.{name}"),
            f"`{name}` is the last rows by {_order(order)}, and `{first}` by {_order(orders[first])}",
            "sort both by the same column, or cut one of them with `type: where`",
            (Related(draft.span(f"data.split.{first}"), f"`{first}` is cut here"),),
        )


def _order(column: str | None) -> str:
    return "the order of the file" if column is None else f"`{column}`"
