"""Section `evaluation`: when the model is evaluated, and on which sets."""

from typing import Annotated, Literal

from pydantic import AfterValidator

from declarative_train.components.durations import Progress, Samples
from declarative_train.core.names import check_unique_names
from declarative_train.recipe.sections.section import Section
from declarative_train.recipe.sections.training import Count


class Evaluation(Section):
    """Evaluation of the model: how often, and on which sets."""

    every: Progress | None = None
    """How often, such as `1 epoch`; left out: at the end of the run, and every epoch if `training.early_stop` or
    `checkpoint.best` need a metric.
    """
    sets: Annotated[tuple[str, ...], AfterValidator(check_unique_names)] | None = None
    """Names from data.split; left out: all but `test`, which is evaluated once at the end, on the best weights."""
    max: Samples | None = None
    """At most this much of each set, such as `10000 samples`; left out: all of it."""
    weights: Literal["trained", "ema"] = "trained"
    """Weights to evaluate: the trained ones, or their moving average (`training.ema`)."""
    batch_size: Count | None = None
    """Samples per rank in one forward; left out: as in training."""
