"""Metrics: numbers to watch."""

from __future__ import annotations

from declarative_train.components.component import Metric
from declarative_train.components.registry import Registry

METRICS: Registry[Metric] = Registry(
    "metric",
    __name__,
    {
        "accuracy": "accuracy.Accuracy",
        "auroc": "auroc.Auroc",
        "average_precision": "average_precision.AveragePrecision",
        "f1": "f1.F1",
        "mae": "mae.Mae",
        "mape": "mape.Mape",
        "mean": "mean.Mean",
        "mse": "mse.Mse",
        "perplexity": "perplexity.Perplexity",
        "precision": "precision.Precision",
        "r2": "r2.R2",
        "recall": "recall.Recall",
        "rmse": "rmse.Rmse",
    },
)
