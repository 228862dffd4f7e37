"""Table of the losses that a recipe can name under `objective`."""

from __future__ import annotations

from declarative_train.components.component import Loss
from declarative_train.components.registry import Registry

LOSSES: Registry[Loss] = Registry(
    "loss",
    __name__,
    {
        "bce_with_logits": "classes.BceWithLogits",
        "cross_entropy": "classes.CrossEntropy",
        "huber": "elementwise.Huber",
        "info_nce": "classes.InfoNce",
        "kl_div": "classes.KlDiv",
        "l1": "elementwise.L1",
        "mean": "elementwise.MeanLoss",
        "mse": "elementwise.MseLoss",
        "nll": "classes.Nll",
        "poisson_nll": "elementwise.PoissonNll",
        "smooth_l1": "elementwise.SmoothL1",
    },
)
