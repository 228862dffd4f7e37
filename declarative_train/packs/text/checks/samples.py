"""Messages about `evaluation.samples`, texts that a model generates at an evaluation."""

from __future__ import annotations

from declarative_train.core.diagnostics.diagnostic import Diagnostic, error
from declarative_train.core.span import Span


def cannot_write(span: Span, problem: str, help: str | None = None) -> Diagnostic:
    """cannot-write (R109)

    Finds: an `evaluation.samples` in a recipe whose model cannot generate text: it reads more than tokens, or does not
           compute all logits of the next token in one place. It is also an error if the model cannot read a prompt,
           for example because it is too long.
    Why:   a text is generated token by token, and each token is chosen from the logits that the model computes for the
           tokens before it.
    Diff:
        # whole file
        name: bytes
        data:
          source: {type: text, path: LICENSE}
          window: {length: 65, stride: 64}
          fields:
            tokens: {column: tokens, rows: ":-1"}
            next: {column: tokens, rows: "1:"}
          split: {validation: {type: last, fraction: 0.1}}
        model:
          graph:
            gpt: {type: gpt, vocabulary: 256, layers: 1, width: 16, heads: 2, input: tokens}
        objective:
          loss: {type: cross_entropy, input: gpt, target: next}
        training: {epochs: 1, global_batch_size: 8, optimizer: {type: sgd, lr: 0.1}}
        evaluation:
    -     samples: {prompts: ["Licensed under the Apache License, Version 2.0 (the License); you may not use it."]}
    +     samples: {prompts: ["Licensed under the"]}
    """
    return error("R109", span, f"no text can be generated: {problem}", help)
