"""longer-than-run (R006)

Finds: an interval or a patience that is longer than the run.
Why:   what is due every 10 epochs never happens in a run of 5.
Bad:
    training: {epochs: 5}
    evaluation: {every: 10 epochs}
Good:
    training: {epochs: 5}
    evaluation: {every: 1 epoch}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, warning
from declarative_train.recipe.draft import Draft
from declarative_train.recipe.sections.training import share_of_run
from declarative_train.terms.duration import Duration


def check(draft: Draft) -> Iterator[Diagnostic]:
    training = draft.training
    if training is None:
        return
    length = "training.epochs" if training.epochs is not None else "training.steps"
    for path, duration in _durations(draft):
        share = share_of_run(duration, training)
        if share is not None and share > 1 and draft.is_written(path):
            yield warning(
                "R006",
                draft.span(path),
                f"{duration} is longer than the run: it never comes",
                "make it shorter, or leave it out",
                (Related(draft.span(length), "the length of the run"),),
            )


def _durations(draft: Draft) -> Iterator[tuple[str, Duration]]:
    if draft.evaluation is not None and draft.evaluation.every is not None:
        yield "evaluation.every", draft.evaluation.every
    if draft.checkpoint is not None and draft.checkpoint.every is not None:
        yield "checkpoint.every", draft.checkpoint.every
    if draft.logging is not None:
        yield "logging.every", draft.logging.every
    if draft.training is not None and draft.training.early_stop is not None:
        yield "training.early_stop.patience", draft.training.early_stop.patience
