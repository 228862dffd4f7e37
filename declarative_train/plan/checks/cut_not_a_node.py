"""cut-not-a-node (P101)

Finds: a name in `cut_before` that is no node at which the model can be cut.
Why:   a cut goes between top-level nodes, or between the copies of an outermost `repeat` and their neighbours; what is
       inside a copy belongs together, and nodes computed from fields alone belong to no stage.
Bad:
    parallelism: {mode: pipeline, stages: 2, microbatches: 2, cut_before: [logit]}
    layout: {gpus: 2}
    training: {global_batch_size: 8}
Good:
    parallelism: {mode: pipeline, stages: 2, microbatches: 2, cut_before: [logits]}
    layout: {gpus: 2}
    training: {global_batch_size: 8}
"""

from __future__ import annotations

from collections.abc import Sequence

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.diagnostics.suggest import did_you_mean, respelt
from declarative_train.terms.span import Span


def cut_not_a_node(span: Span, name: str, known: Sequence[str]) -> Diagnostic:
    message, fixes = f"the model cannot be cut before `{name}`", respelt(span, name, known)
    return error("P101", span, message, did_you_mean(name, known), fixes=fixes)
