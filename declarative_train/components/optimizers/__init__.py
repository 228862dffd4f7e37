"""Optimizers: how gradients change parameters."""

from __future__ import annotations

from declarative_train.components.component import Optimizer
from declarative_train.components.registry import Registry

OPTIMIZERS: Registry[Optimizer] = Registry(
    "optimizer",
    __name__,
    {
        "adafactor": "squares.Adafactor",
        "adagrad": "squares.Adagrad",
        "adam": "adam.Adam",
        "adamw": "adam.Adamw",
        "lion": "momentum.Lion",
        "muon": "momentum.Muon",
        "rmsprop": "squares.Rmsprop",
        "sgd": "momentum.Sgd",
    },
)
