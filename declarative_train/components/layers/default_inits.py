"""Default start values of layers' parameters: torch's own distributions, as rules.

A rule is imported when it is first used: reading a recipe needs none.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

from declarative_train.components.component import Init
from declarative_train.components.inits import INITS


def start(kind: str, **fields: Any) -> Init:
    """Return the rule that recipes call by this name."""
    return INITS[kind](**fields)


def linear_weight() -> Init:
    """Return the rule of linear and convolution weights: +-1 / sqrt(fan in)."""
    return start("kaiming_uniform", a=sqrt(5))


def linear_bias(fan_in: int) -> Init:
    """Return the rule of the bias that belongs to such a weight."""
    bound = 1 / sqrt(fan_in)
    return start("uniform", low=-bound, high=bound)


def scale_and_shift(parameter: str) -> Init | None:
    """Return the rule of a norm's parameter, which starts as the identity, or None."""
    return {"weight": start("ones"), "bias": start("zeros")}.get(parameter)
