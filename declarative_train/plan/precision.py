"""The words of `training.precision`, as the plan has them."""

from __future__ import annotations

from typing import Literal

from declarative_train.recipe.sections.training import Precision


def reduce_word(precision: Precision) -> Literal["fp64", "fp32", "bf16"]:
    """In what gradients travel: as wide as the parameters, if the recipe does not say."""
    return precision.reduce or ("fp64" if precision.compute == "fp64" else "fp32")
