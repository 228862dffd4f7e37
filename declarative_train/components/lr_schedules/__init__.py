"""Learning-rate schedules: factors on every group's lr."""

from __future__ import annotations

from declarative_train.components.component import LrSchedule
from declarative_train.components.registry import Registry

LR_SCHEDULES: Registry[LrSchedule] = Registry(
    "lr schedule",
    __name__,
    {
        "constant": "constant.Constant",
        "cosine": "cosine.Cosine",
        "exponential": "exponential.Exponential",
        "inverse_sqrt": "inverse_sqrt.InverseSqrt",
        "linear": "linear.Linear",
        "one_cycle": "one_cycle.OneCycle",
        "polynomial": "polynomial.Polynomial",
        "step": "step.Step",
        "wsd": "wsd.Wsd",
    },
)
