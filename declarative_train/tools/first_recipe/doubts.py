"""Columns that alone nearly decide the target. Such a column is often unknown when the target is to be predicted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from declarative_train.tools.first_recipe.values import ColumnValues

if TYPE_CHECKING:
    import numpy as np

_LEAST_ROWS = 100
_LEAST_IN_PART = 10  # rows of a part, so that a fit is not by chance
_MOST_PARTS = 50
_DECIDES = 0.99  # share of the rows, or of the variance, that the column explains
_MOST_LEFT = 0.1  # errors relative to those of always predicting the largest class


def doubt_of(each: ColumnValues, target: ColumnValues) -> str:
    """Return a warning if the column `each` alone nearly always determines the target. Such a column is often unknown
    when the target is to be predicted. Otherwise, or if there are too few rows to decide, return ""."""
    import numpy as np

    both = each.present & target.present
    if both.sum() < _LEAST_ROWS or each.values.ndim > 1 or len(each.words) < 2:
        return ""
    parts = _number_parts(each, both)
    if parts is None:
        return ""
    answers = target.values[both]
    if len(target.words) > _MOST_PARTS or (target.values.dtype.kind == "f" and not target.is_whole):
        return "" if target.is_text else _explains(parts, answers.astype(np.float64), target.name)
    codes = np.unique(answers.astype(str), return_inverse=True)[1]
    table = np.zeros((parts.max() + 1, codes.max() + 1), np.int64)
    np.add.at(table, (parts, codes), 1)
    right, most = table.max(axis=1).sum() / len(codes), table.sum(axis=0).max() / len(codes)
    if right >= _DECIDES and 1 - right <= _MOST_LEFT * (1 - most):
        return f"alone it gives `{target.name}` in {right:.1%} of the rows"
    return ""


def _number_parts(each: ColumnValues, both: np.ndarray) -> np.ndarray | None:
    """Return the index of the group of each row; rows with equal values in the column `each` form a group. If there are
    many different numbers, each range of numbers is a group. Return None if the groups would have too few rows on
    average. `both`: mask of the rows to divide, which have a value in this column and in the target."""
    import numpy as np

    values = each.values[both]
    if each.is_text or len(each.words) <= _MOST_PARTS:
        codes: np.ndarray = np.unique(values.astype(str) if each.is_text else values, return_inverse=True)[1]
        return codes if len(each.words) * _LEAST_IN_PART <= len(values) else None
    number = min(_MOST_PARTS, len(values) // _LEAST_IN_PART)
    ends = np.unique(np.quantile(values.astype(np.float64), np.linspace(0, 1, number + 1)[1:-1]))
    found: np.ndarray = np.searchsorted(ends, values.astype(np.float64), side="right")
    return found


def _explains(parts: np.ndarray, answers: np.ndarray, name: str) -> str:
    import numpy as np

    counts = np.bincount(parts)
    means = np.bincount(parts, answers) / np.maximum(counts, 1)
    spread = ((answers - answers.mean()) ** 2).sum()
    left = ((answers - means[parts]) ** 2).sum()
    explained = 1 - left / spread if spread else 0.0
    return f"alone it explains {explained:.1%} of the variance of `{name}`" if explained >= _DECIDES else ""
