"""mask-without-items (G014)

Finds: a loss whose mask, with its `ignore_index`, lets no item of the training rows count.
Why:   there is nothing to learn from: the run fails at the end of its first epoch.
Bad:
    model:
      graph: {large: digit > 20}
    objective:
      loss: {mask: large}
Good:
    model:
      graph: {large: digit > 2}
    objective:
      loss: {mask: large}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error, warning
from declarative_train.terms.span import Span


def mask_without_items(span: Span, num_rows: int, *, is_certain: bool) -> Diagnostic:
    """`is_certain`: all training rows were looked at."""
    if is_certain:
        return error(
            "G014", span, f"no item of the {num_rows:,} training samples counts: there is nothing to learn from"
        )
    return warning("G014", span, f"no item counts of the {num_rows:,} training samples that were looked at")
