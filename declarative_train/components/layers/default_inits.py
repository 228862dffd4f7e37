"""Inits that layers use if a recipe sets none: torch's own distributions.

An init is imported when it is first used, because reading a recipe needs none.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

from declarative_train.components.component import Init
from declarative_train.components.inits import INITS


def start(kind: str, **fields: Any) -> Init:
    """Return the init of the type `kind` with these keys."""
    return INITS[kind](**fields)


def linear_weight() -> Init:
    """Return the init of the weight of a linear layer or convolution: uniform within +-1 / sqrt(fan in)."""
    return start("kaiming_uniform", a=sqrt(5))


def linear_bias(fan_in: int) -> Init:
    """Return the init of the bias of a linear layer or convolution, whose weight has this fan in."""
    bound = 1 / sqrt(fan_in)
    return start("uniform", low=-bound, high=bound)


def scale_and_shift(parameter: str) -> Init | None:
    """Return the init of a norm's parameter, with which the norm neither scales nor shifts; None for another name."""
    return {"weight": start("ones"), "bias": start("zeros")}.get(parameter)
