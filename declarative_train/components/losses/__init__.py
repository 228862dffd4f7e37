"""Losses: what a term of the objective can be."""

from __future__ import annotations

from declarative_train.components.component import Loss
from declarative_train.components.registry import Registry

LOSSES: Registry[Loss] = Registry(
    "loss",
    __name__,
    {
        "bce_with_logits": "bce_with_logits.BceWithLogits",
        "cross_entropy": "cross_entropy.CrossEntropy",
        "huber": "huber.Huber",
        "info_nce": "info_nce.InfoNce",
        "kl_div": "kl_div.KlDiv",
        "l1": "l1.L1",
        "mean": "mean.Mean",
        "mse": "mse.Mse",
        "nll": "nll.Nll",
        "poisson_nll": "poisson_nll.PoissonNll",
        "smooth_l1": "smooth_l1.SmoothL1",
    },
)
