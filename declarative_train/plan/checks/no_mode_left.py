"""no-mode-left (P109)

Finds: `parallelism: auto` where lint would refuse every mode, most often because the batch divides over none.
Why:   nothing is floored and no GPU is left out, so there is nothing to choose from.
Bad:
    training: {global_batch_size: 100, microbatch_size: 3}
    parallelism: auto
    layout: {gpus: 2}
Good:
    training: {global_batch_size: 100, microbatch_size: 5}
    parallelism: auto
    layout: {gpus: 2}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.terms.span import Span


def no_mode_left(span: Span, mode: str, refusal: Diagnostic) -> Diagnostic:
    """`refusal` of the simplest mode."""
    return error(
        "P109",
        span,
        f"auto has no mode to choose: {mode} is refused, as all others are, since {refusal.message}",
        refusal.help,
        (Related(refusal.span, f"{refusal.code}, for {mode}"),),
    )
