"""`evaluation`: when, and on which sets."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from declarative_train.components.durations import Progress, Samples
from declarative_train.core.names import check_unique_names
from declarative_train.recipe.sections.section import Section
from declarative_train.recipe.sections.training import Count


class TextSamples(Section):
    """Texts that the model writes at each evaluation."""

    prompts: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1, max_length=64)]
    """How each begins; of a model of dialogues what the user says."""
    max_tokens: Count = 64
    """The most that are written; a token that ends a text, which the model was taught, ends it."""
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """0: always the likeliest token; else one is drawn, of logits divided by this."""
    top_k: Count | None = None
    """Draw among so many of the likeliest tokens."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Draw among the fewest tokens that have this probability together."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Of the draws: the same at each evaluation."""


class Evaluation(Section):
    """When the model is evaluated, and on what."""

    every: Progress | None = None
    """How often, such as `1 epoch`; left out: at the end of the run, and every epoch where `training.early_stop` or
    `checkpoint.best` wait for a metric."""
    sets: Annotated[tuple[str, ...], AfterValidator(check_unique_names)] | None = None
    """Names from data.split; left out: all but `test`, which is evaluated once at the end, on the best weights."""
    max: Samples | None = None
    """At most this much of each set, such as `10000 samples`; left out: all of it."""
    weights: Literal["trained", "ema"] = "trained"
    """Which weights are evaluated: those that are trained, or their moving average (`training.ema`)."""
    batch_size: Count | None = None
    """Samples per rank in one forward; left out: as in training."""
    samples: TextSamples | None = None
    """Texts that the model writes at each evaluation, for TensorBoard and the record of the run."""
