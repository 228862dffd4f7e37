"""missing-base (M001)

Finds: an `extends`, or a `--with`, whose file is not there or cannot be read.
Why:   the settings of that file would be missing from the recipe.
Bad:
    # file: recipe.yaml
    extends: nowhere.yaml
Good:
    meta: {owner: me}
"""

from __future__ import annotations

from collections.abc import Iterable

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.diagnostics.suggest import nearest, respelt
from declarative_train.terms.span import Span


def missing_base(span: Span, typed: str, path: str, reason: str, beside: Iterable[str]) -> Diagnostic:
    """`beside`: the YAML files that are there, as they would be typed."""
    names = list(beside)
    close = nearest(typed, names)
    way_out = f"did you mean `{close}`?" if close else None
    if way_out is None and path != typed:
        way_out = f"`{path}` was looked for: the path is relative to the file that names it"
    return error("M001", span, f"`{typed}` {reason}", way_out, fixes=respelt(span, typed, names))
