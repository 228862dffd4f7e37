"""Table of the optimizers that a recipe can name."""

from __future__ import annotations

from declarative_train.components.component import Optimizer
from declarative_train.components.registry import Registry

OPTIMIZERS: Registry[Optimizer] = Registry(
    "optimizer",
    __name__,
    {
        "adafactor": "builtin.Adafactor",
        "adagrad": "builtin.Adagrad",
        "adam": "builtin.Adam",
        "adamw": "builtin.Adamw",
        "lion": "builtin.Lion",
        "muon": "builtin.Muon",
        "rmsprop": "builtin.Rmsprop",
        "sgd": "builtin.Sgd",
    },
)
