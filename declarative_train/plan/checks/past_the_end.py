"""past-the-end (R103)

Finds: an interval, a patience or a duration of the lr schedule that, counted in steps of this data and batch, is longer
       than the run, or than what a warm-up leaves of it.
Why:   it never comes; and a warm-up that takes the whole run never reaches the learning rate that the recipe names.
Bad:
    training: {epochs: 1}
    checkpoint: {every: 1000000 steps}
Good:
    training: {epochs: 1}
    checkpoint: {every: 1 epoch}
"""

from __future__ import annotations

from declarative_train.components.component import Misfit
from declarative_train.diagnostics.diagnostic import Diagnostic, error, warning
from declarative_train.terms.amounts import counted
from declarative_train.terms.duration import Duration
from declarative_train.terms.span import Span


def past_the_end(span: Span, duration: Duration, steps: int, num_steps: int, *, is_warmup: bool = False) -> Diagnostic:
    length = f"{duration}" if duration.unit == "steps" else f"{duration} ({counted(steps, 'step')})"
    if is_warmup:
        message = f"a warm-up of {length} leaves nothing of a run of {counted(num_steps, 'step')}"
        return error("R103", span, message, "make it shorter, such as `5%`")
    message = f"{length} never comes in a run of {counted(num_steps, 'step')}"
    return warning("R103", span, message, "make it shorter, or leave it out")


def schedule_past_the_end(span: Span, misfit: Misfit) -> Diagnostic:
    say = warning if misfit.is_warning else error
    return say("R103", span, misfit.message, misfit.help)
