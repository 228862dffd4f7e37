"""draws-of-layout (R108)

Finds: a node that draws random numbers (dropout, `randn_like`), in a layout that shares a batch out.
Why:   the numbers are drawn where the samples are: the same layout draws the same ones, to the bit, and another layout
       others, of the same distribution. That every mode gives the same gradients is promised without such nodes. No
       file can tell whether that matters here; `# dtrain: ignore[R108]` on its line says that it does not.
Bad:
    model:
      graph:
        act: {type: dropout, p: 0.1}
    parallelism: ddp
    layout: {gpus: 2}
Good:
    model:
      graph:
        act: {type: dropout, p: 0.1}
    parallelism: single
    layout: {gpus: 1}
"""

from __future__ import annotations

from collections.abc import Sequence

from declarative_train.diagnostics.diagnostic import Diagnostic, unverified
from declarative_train.terms.span import Span


def draws_of_layout(span: Span, names: Sequence[str], *, is_certain: bool = True) -> Diagnostic:
    """Said once, at the first of them. Of a plugin too large to be tried nobody knows whether it draws."""
    draws = "draws" if is_certain else "may draw"
    others = f" (and {len(names) - 1} more, such as `{names[1]}`)" if len(names) > 1 else ""
    return unverified(
        "R108",
        span,
        f"`{names[0]}`{others} {draws} random numbers: on this layout always the same ones, on another layout others",
        "compare runs of several layouts without it, or by their statistics",
    )
