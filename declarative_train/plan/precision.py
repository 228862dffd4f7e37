"""Dtype of gradient reduction in a plan."""

from __future__ import annotations

from typing import Literal

from declarative_train.recipe.sections.training import Precision


def reduce_word(precision: Precision) -> Literal["fp64", "fp32", "bf16"]:
    """Return the dtype in which gradients are reduced: the recipe's choice, otherwise the dtype of the parameters."""
    return precision.reduce or ("fp64" if precision.compute == "fp64" else "fp32")
