"""Optimizers: rules that update parameters by their gradients."""

from __future__ import annotations

from declarative_train.components.component import Optimizer
from declarative_train.components.registry import Registry

OPTIMIZERS: Registry[Optimizer] = Registry(
    "optimizer",
    __name__,
    {
        "adafactor": "rules.Adafactor",
        "adagrad": "rules.Adagrad",
        "adam": "rules.Adam",
        "adamw": "rules.Adamw",
        "lion": "rules.Lion",
        "muon": "rules.Muon",
        "rmsprop": "rules.Rmsprop",
        "sgd": "rules.Sgd",
    },
)
