"""no-parameters (O104)

Finds: a model without a single parameter.
Why:   there is nothing to train.
Bad:
    # whole file
    name: nothing_to_train
    data:
      source: {type: synthetic, kind: classification, rows: 64, features: 10}
      fields:
        x: {column: x}
        y: {type: category, column: y, num_classes: 10}
    model:
      graph:
        logits: x * 2
    objective:
      loss: {type: cross_entropy, input: logits, target: y}
    training: {epochs: 1, global_batch_size: 8, optimizer: {type: sgd, lr: 0.1}}
Good:
    # whole file
    name: something_to_train
    data:
      source: {type: synthetic, kind: classification, rows: 64, features: 10}
      fields:
        x: {column: x}
        y: {type: category, column: y, num_classes: 10}
    model:
      graph:
        logits: {type: linear, out_features: 10, input: x}
    objective:
      loss: {type: cross_entropy, input: logits, target: y}
    training: {epochs: 1, global_batch_size: 8, optimizer: {type: sgd, lr: 0.1}}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def no_parameters(span: Span) -> Diagnostic:
    return error("O104", span, "this graph has no parameter: there is nothing to train", "add a layer that learns")
