"""Metrics, computed in evaluations and training."""

from __future__ import annotations

from declarative_train.components.component import Metric
from declarative_train.components.registry import Registry

METRICS: Registry[Metric] = Registry(
    "metric",
    __name__,
    {
        "accuracy": "means.Accuracy",
        "auroc": "classes.Auroc",
        "average_precision": "classes.AveragePrecision",
        "f1": "classes.F1",
        "iou": "classes.Iou",
        "mae": "errors.Mae",
        "mape": "errors.Mape",
        "mean": "means.MeanMetric",
        "mse": "errors.MseMetric",
        "perplexity": "means.Perplexity",
        "precision": "classes.PrecisionMetric",
        "r2": "errors.R2",
        "recall": "classes.Recall",
        "rmse": "errors.Rmse",
    },
)
