"""too-few-nodes (P104)

Finds: more pipeline stages than nodes with parameters to share out.
Why:   a stage needs at least one node that learns; a node is never split.
Bad:
    parallelism: {mode: pipeline, stages: 3, microbatches: 3}
    layout: {gpus: 3}
    training: {global_batch_size: 12}
Good:
    parallelism: {mode: pipeline, stages: 2, microbatches: 2}
    layout: {gpus: 2}
    training: {global_batch_size: 8}
"""

from __future__ import annotations

from collections.abc import Sequence

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.amounts import counted
from declarative_train.terms.span import Span


def too_few_nodes(span: Span, stages: int, nodes: Sequence[str]) -> Diagnostic:
    listed = ", ".join(nodes[:8]) + (f", and {len(nodes) - 8} more" if len(nodes) > 8 else "")
    return error(
        "P104",
        span,
        f"{counted(stages, 'stage')}, and {counted(len(nodes), 'node')} with parameters to share out",
        f"at most {len(nodes)}: {listed}" if nodes else None,
    )
