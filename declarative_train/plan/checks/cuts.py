"""Messages on the `tensor` axis.

Each function is one message; its docstring is the manual page of its code.
"""

from __future__ import annotations

from collections.abc import Mapping

from declarative_train.core.diagnostics.diagnostic import Diagnostic, warning
from declarative_train.core.span import Span


def nothing_is_divided(span: Span, reasons: Mapping[str, str]) -> Diagnostic:
    """nothing-is-divided (P110)

    Finds: a `tensor` axis whose ranks can divide no layer of the model.
    Why:   every rank then holds and computes the whole model on the same rows. A linear layer is divided together with
           the one that reads its features, attention by its heads, an embedding by its rows; the sizes must be
           multiples of the number of ranks.
    Diff:
    -   parallelism: {tensor: 3}
    -   layout: {gpus: 3}
    +   parallelism: {tensor: 2}
    +   layout: {gpus: 2}
    """
    shown = "".join(f"; `{path}`: {reason}" for path, reason in list(reasons.items())[:3])
    message = f"no layer can be divided, so that every rank computes the whole model{shown}"
    return warning("P110", span, message, "use a number of ranks that divides the sizes of the layers, or ddp or fsdp")
