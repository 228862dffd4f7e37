"""`sweep`: the settings that are tried, and how the next ones are picked."""

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from declarative_train.recipe.sections.section import Section
from declarative_train.recipe.sections.training import Count

_RANGE = {
    "type": "object",
    "properties": {
        "low": {"type": "number"},
        "high": {"type": "number"},
        "log": {"type": "boolean"},
        "step": {"type": "number"},
    },
    "required": ["low", "high"],
    "additionalProperties": False,
}
_OVER = {
    "type": "object",
    "minProperties": 1,
    "additionalProperties": {"anyOf": [{"type": "array", "minItems": 1}, _RANGE]},
}


class Sweep(Section):
    """Settings that `dtrain sweep` tries; `dtrain run` runs the recipe as it stands without them."""

    type: Literal["grid", "random", "optuna"]
    """`grid`: every combination; `random`: so many draws; `optuna`: draws that learn from those before (extra
    `optuna`)."""
    over: Annotated[dict[str, Any], WithJsonSchema(_OVER)]
    """What is tried, by the paths of `--set`: a list of values, or a range `{low, high, log, step}` (not with `grid`).
    Whole numbers at both ends are drawn as such."""
    metric: str | None = None
    """What the points are compared by, such as `validation/accuracy`; left out: that of `checkpoint.best` or
    `early_stop`, else the first metric of the first evaluated set, else the loss."""
    mode: Literal["min", "max"] | None = None
    """Whether less or more is better; left out: as the metric says itself."""
    trials: Count | None = None
    """How many points are drawn (`random`, `optuna`)."""
    seed: Annotated[int, Field(ge=0)] | None = None
    """Decides the draws (`random`, `optuna`); left out: 0. The recipe's own `seed` stays that of every point."""
    sampler: Literal["tpe", "random", "cmaes"] | None = None
    """How `optuna` draws: https://optuna.readthedocs.io/en/stable/reference/samplers/; left out: `tpe`."""
    pruner: Literal["none", "median", "hyperband"] | None = None
    """Which points `optuna` gives up early, by their evaluations on the way; left out: `none`."""
