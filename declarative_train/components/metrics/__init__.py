"""Metrics: numbers to watch."""

from __future__ import annotations

from declarative_train.components.component import Metric
from declarative_train.components.registry import Registry

METRICS: Registry[Metric] = Registry(
    "metric",
    __name__,
    {
        "accuracy": "means.Accuracy",
        "auroc": "ranked.Auroc",
        "average_precision": "ranked.AveragePrecision",
        "f1": "counted.F1",
        "mae": "errors.Mae",
        "mape": "errors.Mape",
        "mean": "means.Mean",
        "mse": "errors.Mse",
        "perplexity": "means.Perplexity",
        "precision": "counted.Precision",
        "r2": "errors.R2",
        "recall": "counted.Recall",
        "rmse": "errors.Rmse",
    },
)
