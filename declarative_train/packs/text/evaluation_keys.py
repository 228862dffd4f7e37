"""Keys that this pack adds to the section `evaluation`."""

from typing import Annotated

from pydantic import Field

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


class EvaluationKeys(Section):
    """Keys that the pack `text` adds to the section `evaluation`."""

    samples: TextSamples | None = None
    """Texts that the model generates at each evaluation, for TensorBoard and the record of the run."""
