"""cannot-balance (O105)

Finds: `balanced` weights that cannot be counted: a training row has a class that the input has no score for, or none
       has any that counts.
Why:   the weight of a class is its inverse share of the training rows, counted when the recipe is compiled.
Bad:
    # whole file
    name: balance
    data:
      source: {type: synthetic, kind: classification, rows: 200, features: 10}
      fields:
        x: {column: x}
        y: {type: category, column: y, num_classes: 10}
    model:
      graph:
        rare: float(y > 20)
        logits: {type: linear, out_features: 1, input: x}
        score: logits[:, 0]
    objective:
      loss: {type: bce_with_logits, input: score, target: rare, pos_weight: balanced}
    training: {epochs: 1, global_batch_size: 8, optimizer: {type: sgd, lr: 0.1}}
Good:
    # whole file
    name: balance
    data:
      source: {type: synthetic, kind: classification, rows: 200, features: 10}
      fields:
        x: {column: x}
        y: {type: category, column: y, num_classes: 10}
    model:
      graph:
        shifted: y + 1
        logits: {type: linear, out_features: 11, input: x}
    objective:
      loss: {type: cross_entropy, input: logits, target: shifted, class_weights: balanced}
    training: {epochs: 1, global_batch_size: 8, optimizer: {type: sgd, lr: 0.1}}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def cannot_balance(span: Span, term: str, problem: str) -> Diagnostic:
    return error("O105", span, f"the loss `{term}` cannot be balanced: {problem}", "give the weights as numbers")
