"""How much of a run a duration is, as far as a recipe alone can tell."""

from __future__ import annotations

from declarative_train.recipe.sections.training import Training
from declarative_train.terms.duration import Duration


def share_of_run(duration: Duration, training: Training) -> float | None:
    """1.0 for the whole run; None where it takes the size of the data to say."""
    if duration.unit == "%":
        return duration.value / 100
    if training.epochs is not None:
        return duration.value / training.epochs if duration.unit == "epochs" else None
    if training.steps is None:
        return None
    if duration.unit == "steps":
        return duration.value / training.steps
    if duration.unit == "samples":
        return duration.value / (training.steps * training.global_batch_size)
    return None
