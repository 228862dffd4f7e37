"""Table of the learning-rate schedules that a recipe can name. A schedule gives a factor for each step, by
which the learning rate of every parameter group is multiplied.
"""

from __future__ import annotations

from declarative_train.components.component import LrSchedule
from declarative_train.components.registry import Registry

LR_SCHEDULES: Registry[LrSchedule] = Registry(
    "lr schedule",
    __name__,
    {
        "constant": "factors.ConstantLr",
        "cosine": "factors.Cosine",
        "exponential": "timed.Exponential",
        "inverse_sqrt": "factors.InverseSqrt",
        "linear": "factors.LinearLr",
        "one_cycle": "factors.OneCycle",
        "polynomial": "factors.Polynomial",
        "step": "timed.StepLr",
        "wsd": "timed.Wsd",
    },
)
