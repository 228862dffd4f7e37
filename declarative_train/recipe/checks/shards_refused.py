"""shards-refused (P013)

Finds: an optimizer that cannot update sharded parameters, where parameters are sharded.
Why:   adafactor takes norms over a whole parameter, and a rank of fsdp holds only its shard: torch stops, or would take
       the norm of the shard for that of the parameter.
Bad:
    training:
      optimizer: {type: adafactor, lr: 0.01}
    parallelism: fsdp
    layout: {gpus: 2}
Good:
    training:
      optimizer: {type: adamw, lr: 0.001}
    parallelism: fsdp
    layout: {gpus: 2}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.components.component import Optimizer
from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.recipe.draft import Draft
from declarative_train.recipe.sections.parallelism import Fsdp
from declarative_train.terms.span import Span


def check(draft: Draft) -> Iterator[Diagnostic]:
    place = _sharded_by(draft)
    if place is None:
        return
    for optimizer, span in _optimizers(draft):
        if not optimizer.takes_shards:
            yield error(
                "P013",
                span,
                f"`{optimizer.type}` needs whole parameters, and fsdp gives each rank a shard of them",
                "take another optimizer, such as adamw, or ddp",
                (Related(draft.span(place), "parameters are sharded here"),),
            )


def _sharded_by(draft: Draft) -> str | None:
    """The key that has the parameters sharded."""
    parallelism = draft.parallelism
    if isinstance(parallelism, Fsdp):
        return "parallelism.mode"
    if draft.pipeline is not None and draft.pipeline.is_sharded:
        return "parallelism.data_parallel.mode"
    return None


def _optimizers(draft: Draft) -> Iterator[tuple[Optimizer, Span]]:
    """That of the run, and those of some parameters."""
    if draft.training is not None:
        yield draft.training.optimizer, draft.span("training.optimizer.type")
    for rule in draft.rules:
        if rule.settings.optimizer is not None:
            yield rule.settings.optimizer, rule.span
