"""`evaluation`: when, and on which sets."""

from typing import Annotated, Literal

from pydantic import AfterValidator

from declarative_train.components.durations import Progress, Samples
from declarative_train.recipe.sections.section import Section
from declarative_train.recipe.sections.training import Count
from declarative_train.terms.names import distinct


class Evaluation(Section):
    """When the model is evaluated, and on what."""

    every: Progress | None = None
    """How often, such as `1 epoch`; left out: at the end of the run, and every epoch where `training.early_stop` or
    `checkpoint.best` wait for a metric."""
    sets: Annotated[tuple[str, ...], AfterValidator(distinct)] | None = None
    """Names from data.split; left out: all but `test`, which is evaluated once at the end, on the best weights."""
    max: Samples | None = None
    """At most this much of each set, such as `10000 samples`; left out: all of it."""
    weights: Literal["trained", "ema"] = "trained"
    """Which weights are evaluated: those that are trained, or their moving average (`training.ema`)."""
    batch_size: Count | None = None
    """Samples per rank in one forward; left out: as in training."""
