"""Inits of the parameters for which a recipe sets none. They are the distributions that torch uses by default. The
class of an init is imported when the init is first needed, because reading a recipe needs no init.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

from declarative_train.components.component import Init
from declarative_train.components.inits import INITS


def start(kind: str, **fields: Any) -> Init:
    """Return the init of type `kind` with the given fields."""
    return INITS[kind](**fields)


def linear_weight() -> Init:
    """Return the init of the weight of a linear layer or convolution. It is uniform between -1 / sqrt(fan_in) and 1 /
    sqrt(fan_in), where fan_in is the number of inputs of each output unit.
    """
    return start("kaiming_uniform", a=sqrt(5))


def linear_bias(fan_in: int) -> Init:
    """Return the init of the bias of a linear layer or convolution. `fan_in`: number of inputs of each output
    unit.
    """
    bound = 1 / sqrt(fan_in)
    return start("uniform", low=-bound, high=bound)


def scale_and_shift(parameter: str) -> Init | None:
    """Return the init of a norm's parameter: ones for `weight`, zeros for `bias`, None for another name. With these
    values the norm neither scales nor shifts.
    """
    return {"weight": start("ones"), "bias": start("zeros")}.get(parameter)
