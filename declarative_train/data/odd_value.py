"""A column that is text only because of a few of its values: the first of those, for the message."""

from __future__ import annotations

from collections.abc import Sequence

from declarative_train.components.component import Column, Misfit, Table

_LOOKED_AT = 100_000  # rows


def with_the_odd_value(misfit: Misfit, table: Table, columns: Sequence[Column]) -> Misfit:
    """Where a column is text only because of a few of its values, the first of those."""
    for column in columns:
        if column.dtype != "object" or column.shape:
            continue
        values = table.read([column.name], slice(0, _LOOKED_AT))[column.name]
        odd = [row for row, value in enumerate(values) if value is not None and not _is_number(value)]
        if odd and 5 * len(odd) < len(values):
            where = f"`{values[odd[0]]:.40}` in {table.place(odd[0])}"
            message = f"`{column.name}` holds numbers, and text beside them: {where}"
            return misfit._replace(message=message, help="write a number there, or nothing and `missing: mean`")
    return misfit


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
