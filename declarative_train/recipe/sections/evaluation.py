"""Section `evaluation`: when, and on which sets."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from declarative_train.components.durations import Progress, Samples
from declarative_train.core.names import check_unique_names
from declarative_train.recipe.sections.section import Section
from declarative_train.recipe.sections.training import Count


class TextSamples(Section):
    """Texts that the model generates at each evaluation."""

    prompts: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1, max_length=64)]
    """Beginnings of the texts; for a model of dialogues, messages of the user."""
    max_tokens: Count = 64
    """The largest number of tokens; a token that ends a text in the training data also ends it."""
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """0: always the most likely token; else it is sampled, from logits divided by this."""
    top_k: Count | None = None
    """Sample among this number of the most likely tokens."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Sample among the fewest tokens whose probabilities add up to this."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the samples: the same at each evaluation."""


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
    samples: TextSamples | None = None
    """Texts that the model generates at each evaluation, for TensorBoard and the record of the run."""
