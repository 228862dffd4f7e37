"""target-among-inputs (O009)

Finds: a column that a loss is to be told from, among the columns that its input is computed of; of windows, the same
       rows of it.
Why:   the model copies the answer: nearly every prediction is right in training and validation, and none where the
       answer is not known yet. A field that is its own target (an autoencoder), a field all of whose columns are
       targets, and rows shifted against each other are meant, and not said.
Bad:
    data:
      fields:
        pixels: {columns: "*"}
Good:
    data:
      fields:
        pixels: {columns: "*", exclude: [label]}
"""

from __future__ import annotations

from collections.abc import Sequence

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.terms.span import Span


def target_among_inputs(
    span: Span, field: str, target: str, columns: Sequence[str], way_out: str, made: Span
) -> Diagnostic:
    which = ", ".join(f"`{column}`" for column in columns[:4]) + (", ..." if len(columns) > 4 else "")
    message = f"field `{field}`, which the model reads, holds {which}, which is what the target `{target}` is made of"
    return error("O009", span, message, way_out, (Related(made, f"`{target}` is the target"),))
