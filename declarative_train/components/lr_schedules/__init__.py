"""Table of the learning-rate schedules that a recipe can name. The learning rate of every parameter group is
multiplied by the schedule's factor of each step.
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
