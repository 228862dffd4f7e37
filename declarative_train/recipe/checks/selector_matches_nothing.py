"""selector-matches-nothing (U002)

Finds: an entry of `model.parameters` that no parameter of the model meets.
Why:   a frozen encoder that is not frozen costs a whole run before anyone sees it.
Bad:
    model:
      parameters:
        hiden: {frozen: true}
Good:
    model:
      parameters:
        hidden: {frozen: true}
"""

from __future__ import annotations

from collections.abc import Sequence

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.diagnostics.suggest import nearest, respelt
from declarative_train.terms.span import Span


def selector_matches_nothing(span: Span, selector: str, parameters: Sequence[str]) -> Diagnostic:
    """`parameters`: the names that the selector could have met, as it sees them."""
    inside = next((name for name in parameters if f".{selector}." in f"{name}."), None)
    if "." in selector and inside is not None:
        way = inside[: inside.index(f".{selector}") + 1 + len(selector)]
        way_out = f"with a dot a selector begins at the root: `{way}`"
        return error("U002", span, f"no parameter matches `{selector}`", way_out)
    known = _ways(parameters) if "." in selector else {part for name in parameters for part in name.split(".")}
    close = nearest(selector, known)
    message = f"no parameter matches `{selector}`"
    if close is not None:
        return error("U002", span, message, f"did you mean `{close}`?", fixes=respelt(span, selector, known))
    shown = ", ".join(parameters[:6]) + (f", and {len(parameters) - 6} more" if len(parameters) > 6 else "")
    return error("U002", span, message, f"the parameters are {shown}" if parameters else "there are no parameters here")


def _ways(parameters: Sequence[str]) -> set[str]:
    """Every parameter and everything that holds parameters."""
    parts = [name.split(".") for name in parameters]
    return {".".join(way[:end]) for way in parts for end in range(1, len(way) + 1)}
