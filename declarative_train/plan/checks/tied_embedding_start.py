"""tied-embedding-start (U108)

Finds: an embedding whose weights are those of the last layer too, and start as an embedding alone does: N(0, 1).
Why:   as a head they make logits as large as the square root of the width, so that training starts with a loss of tens
       or hundreds, far above ln(number of classes), and spends its first part on coming down.
Bad:
    model:
      graph:
        embed: {type: embedding, num_embeddings: 10, embedding_dim: 64, input: digit}
        both: embed + hidden
        act: {type: relu, input: both}
      parameters:
        logits.weight: {tie: embed.weight}
Good:
    model:
      graph:
        embed: {type: embedding, num_embeddings: 10, embedding_dim: 64, input: digit}
        both: embed + hidden
        act: {type: relu, input: both}
      parameters:
        embed.weight: {init: {type: normal, std: 0.02}}
        logits.weight: {tie: embed.weight}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, warning
from declarative_train.terms.span import Span


def tied_embedding_start(span: Span, table: str, head: str, std: float, width: int) -> Diagnostic:
    return warning(
        "U108",
        span,
        f"`{head}` is tied to the embedding `{table}`, which starts with a standard deviation of {std:g}: with a width "
        f"of {width} the logits start at about {std * width**0.5:.0f}, and the loss far above that of guessing",
        f"under `model.parameters`: `{table}: {{init: {{type: normal, std: 0.02}}}}`",
    )
