"""How the parameters of layers start when the recipe says nothing: torch's own distributions, as rules.

A rule is imported when it is asked for: who only reads a recipe asks for none.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

from declarative_train.components.component import Init
from declarative_train.components.inits import INITS


def start(kind: str, **fields: Any) -> Init:
    """The rule that a recipe calls by this name."""
    return INITS[kind](**fields)


def linear_weight() -> Init:
    """Of linear and convolution weights: +-1 / sqrt(fan in)."""
    return start("kaiming_uniform", a=sqrt(5))


def linear_bias(fan_in: int) -> Init:
    """Of the bias beside such a weight."""
    bound = 1 / sqrt(fan_in)
    return start("uniform", low=-bound, high=bound)


def scale_and_shift(parameter: str) -> Init | None:
    """Of a norm, which starts as the identity."""
    return {"weight": start("ones"), "bias": start("zeros")}.get(parameter)
