"""set-inside-list (M007)

Finds: a `--set`, or a mapping of a derived recipe, that reaches into a list.
Why:   lists are only replaced whole: their positions shift when an item is inserted.
Bad:
    # options: --set meta.sizes=[1,2] --set meta.sizes.0=5
Good:
    # options: --set meta.sizes=[1,2] --set meta.sizes=[5,2]
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.terms.span import Span


def set_inside_list(span: Span, name: str, there: Span) -> Diagnostic:
    return error(
        "M007",
        span,
        f"`{name}` is a list; lists are replaced whole",
        f"give the whole list: `{name}=[...]`",
        (Related(there, "the list"),),
    )
