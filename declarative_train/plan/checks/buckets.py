"""Messages on models, losses and layouts that cannot be computed in steps of several lengths (length buckets).

Each function builds the message of one diagnostic code. Its docstring is the manual page of that code.
"""

from __future__ import annotations

from declarative_train.core.diagnostics.diagnostic import Diagnostic, error
from declarative_train.core.span import Span


def model_of_one_length(span: Span, length: int, why: str) -> Diagnostic:
    """model-of-one-length (G025)

    Finds: a model that cannot compute a batch of one of the shorter length buckets.
    Why:   the batches of a bucket are as long as the bucket, but a layer has a fixed size that only fits the longest
           one.
    Diff:
        data: {fields: {chat: {length: {buckets: [21, 41]}}}}
        model:
          graph:
    -       across: {type: linear, out_features: 28, input: tokens_wide}
    -       tokens_wide: float(tokens)
    -       scores: lm + unsqueeze(across, 1)
    +       scores: lm * 2
        objective: {loss: {input: scores}}
    """
    message = f"the model cannot compute a batch of {length} tokens, a bucket of `length`: {why}"
    return error("G025", span, message, "remove the shorter buckets, or the layer that has the length as a size")


def padding_decides_mean(span: Span, kind: str, name: str) -> Diagnostic:
    """padding-decides-mean (O107)

    Finds: a loss or metric over the positions of texts, without a `mask`, if the texts have length buckets.
    Why:   its mean includes the padding, and the amount of padding depends on the bucket of a batch.
    Diff:
        data: {fields: {chat: {length: {buckets: [21, 41]}}}}
    -   model: {graph: {counts: null}}
        objective:
    -     loss: {mask: null}
    +     loss: {mask: counts}
    """
    message = f"the {kind} `{name}` is a mean over all positions: their number differs from bucket to bucket"
    return error("O107", span, message, "set `mask` to a node of `FIELD.mask` or `FIELD.trained`")


def bucket_not_divided(span: Span, key: str, length: int, why: str) -> Diagnostic:
    """bucket-not-divided (P115)

    Finds: a length bucket whose positions do not divide over the ranks of `context`, or of `tensor` with `sequence:
           true`, although those of the longest bucket do.
    Why:   the model is divided over the ranks in one way, which must fit every bucket.
    Diff:
    -   data: {fields: {chat: {length: {buckets: [20, 41]}}}}
    +   data: {fields: {chat: {length: {buckets: [21, 41]}}}}
        parallelism: {context: 2}
        layout: {gpus: 2}
    """
    hint = "change the buckets; `FIELD[:, :-1]` has one position less than its bucket"
    return error("P115", span, f"`{key}` cannot divide the bucket {length} of `length`: {why}", hint)
