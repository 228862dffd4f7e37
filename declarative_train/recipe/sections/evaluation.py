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
    """How often the model is evaluated, such as `1 epoch`; left out: every epoch if `training.early_stop` or
    `checkpoint.best` needs a metric, else at the end of the run.
    """
    sets: Annotated[tuple[str, ...], AfterValidator(check_unique_names)] | None = None
    """Names from data.split; left out: all sets but `test`, which is evaluated once at the end, on the best weights."""
    max: Samples | None = None
    """Largest number of samples of each set to evaluate, such as `10000 samples`; left out: all."""
    weights: Literal["trained", "ema"] = "trained"
    """Weights to evaluate: the trained ones, or their moving average (`training.ema`)."""
    batch_size: Count | None = None
    """Samples per rank in one forward; left out: as in training."""
