"""unknown-column (D005)

Finds: a column, or a glob of columns, that the source does not have.
Why:   a field or a set cannot be made of it.
Bad:
    data:
      fields:
        digit: {type: category, column: lable, num_classes: 10}
Good:
    data:
      fields:
        digit: {type: category, column: label, num_classes: 10}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.diagnostics.suggest import did_you_mean, respelt
from declarative_train.terms.span import Span


def unknown_column(
    span: Span, name: str, known: Iterable[str], left_out: Mapping[str, str], source: str = "the source"
) -> Diagnostic:
    """`left_out` says why a column that the file does have cannot be read."""
    names = list(known)
    if name in left_out:
        return error("D005", span, f"`{name}` cannot be read: {left_out[name]}", did_you_mean("", names))
    if any(sign in name for sign in "*?["):
        return error("D005", span, f"no column of {source} matches `{name}`", did_you_mean(name.strip("*?"), names))
    if len(names) == 1 and (other := next((sign for sign in ";\t|," if sign in names[0]), None)) is not None:
        way_out = f"its only column is `{names[0]}`: set `delimiter: {other!r}` in the source"
        return error("D005", span, f"{source} has no column `{name}`", way_out)
    message, fixes = f"{source} has no column `{name}`", respelt(span, name, names)
    return error("D005", span, message, did_you_mean(name, names), fixes=fixes)
