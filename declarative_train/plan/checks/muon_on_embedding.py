"""muon-on-embedding (U109)

Finds: an embedding that `muon` updates.
Why:   its rows are looked up one by one, and those of the samples alone have a gradient; made orthogonal, that gradient
       moves all others as much. The authors of muon give embeddings another optimizer.
Bad:
    model:
      graph:
        embed: {type: embedding, num_embeddings: 10, embedding_dim: 64, input: digit}
        both: embed + hidden
        act: {type: relu, input: both}
      parameters:
        bias: {optimizer: {type: adamw, lr: 1e-3}}
    training:
      optimizer: {type: muon, lr: 0.02}
Good:
    model:
      graph:
        embed: {type: embedding, num_embeddings: 10, embedding_dim: 64, input: digit}
        both: embed + hidden
        act: {type: relu, input: both}
      parameters:
        bias: {optimizer: {type: adamw, lr: 1e-3}}
        embed: {optimizer: {type: adamw, lr: 1e-3}}
    training:
      optimizer: {type: muon, lr: 0.02}
"""

from __future__ import annotations

from collections.abc import Sequence

from declarative_train.diagnostics.diagnostic import Diagnostic, warning
from declarative_train.terms.span import Span


def muon_on_embedding(span: Span, names: Sequence[str]) -> Diagnostic:
    """Said once, of the first of them."""
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return warning(
        "U109",
        span,
        f"`muon` is for the matrices of hidden layers, and `{names[0]}`{more} is an embedding",
        f"under `model.parameters`: `{names[0]}: {{optimizer: {{type: adamw, lr: 3e-4}}}}`",
    )
