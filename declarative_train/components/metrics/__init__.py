"""Table of the metrics that a recipe can name. Evaluations compute all of them; those that are means can also be
computed in training."""

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
        "coverage_error": "rankings.CoverageError",
        "f1": "classes.F1",
        "iou": "classes.Iou",
        "lrap": "rankings.Lrap",
        "mae": "errors.Mae",
        "mape": "errors.Mape",
        "mcc": "rankings.Mcc",
        "mean": "means.MeanMetric",
        "mse": "errors.MseMetric",
        "ndcg": "rankings.Ndcg",
        "perplexity": "means.Perplexity",
        "precision": "classes.PrecisionMetric",
        "r2": "errors.R2",
        "ranking_loss": "rankings.RankingLoss",
        "recall": "classes.Recall",
        "recall_at_k": "rankings.RecallAtK",
        "rmse": "errors.Rmse",
    },
)
