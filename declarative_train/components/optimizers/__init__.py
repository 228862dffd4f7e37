"""Optimizers: how gradients change parameters."""

from __future__ import annotations

from declarative_train.components.component import Optimizer
from declarative_train.components.registry import Registry

OPTIMIZERS: Registry[Optimizer] = Registry(
    "optimizer",
    __name__,
    {
        "adafactor": "adafactor.Adafactor",
        "adagrad": "adagrad.Adagrad",
        "adam": "adam.Adam",
        "adamw": "adamw.Adamw",
        "lion": "lion.Lion",
        "muon": "muon.Muon",
        "rmsprop": "rmsprop.Rmsprop",
        "sgd": "sgd.Sgd",
    },
)
