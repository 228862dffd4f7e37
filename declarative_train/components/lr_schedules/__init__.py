"""Learning-rate schedules: factors on every group's lr."""

from __future__ import annotations

from declarative_train.components.component import LrSchedule
from declarative_train.components.registry import Registry

LR_SCHEDULES: Registry[LrSchedule] = Registry(
    "lr schedule",
    __name__,
    {
        "constant": "constant.Constant",
        "cosine": "falling.Cosine",
        "exponential": "timed.Exponential",
        "inverse_sqrt": "falling.InverseSqrt",
        "linear": "falling.Linear",
        "one_cycle": "falling.OneCycle",
        "polynomial": "falling.Polynomial",
        "step": "timed.Step",
        "wsd": "timed.Wsd",
    },
)
