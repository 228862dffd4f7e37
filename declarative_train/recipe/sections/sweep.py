"""Section `sweep`: the settings that `dtrain sweep` varies, and how it chooses their values."""

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
    """Settings that `dtrain sweep` varies, and how it chooses their values. `dtrain run` ignores this section."""

    type: Literal["grid", "random", "optuna"]
    """`grid`: every combination; `random`: random points; `optuna`: points that depend on the results of earlier ones
    (extra `optuna`).
    """
    over: Annotated[dict[str, Any], WithJsonSchema(_OVER)]
    """{path of a setting, as in `--set`: its values}. The values are a list, or a range `{low, high, log, step}` (not
    with `grid`). If both ends of a range are whole numbers, so are the points.
    """
    metric: str | None = None
    """Metric by which points are compared, such as `validation/accuracy`; left out: that of `checkpoint.best` or
    `early_stop`, else the first metric of the first evaluated set, else the loss.
    """
    mode: Literal["min", "max"] | None = None
    """Whether smaller (`min`) or larger (`max`) values are better; left out: as the metric defines it."""
    trials: Count | None = None
    """Number of points (`random`, `optuna`)."""
    seed: Annotated[int, Field(ge=0)] | None = None
    """Seed of the points (`random`, `optuna`); left out: 0. The recipe's own `seed` is the same for every point."""
    sampler: Literal["tpe", "random", "cmaes"] | None = None
    """How `optuna` chooses points: https://optuna.readthedocs.io/en/stable/reference/samplers/; left out: `tpe`."""
    pruner: Literal["none", "median", "hyperband"] | None = None
    """How `optuna` stops the runs of poor points early, by their evaluations; left out: `none`."""
