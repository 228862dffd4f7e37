"""Every metric that scikit-learn or torchvision also computes has their value, alone and over uneven ranks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from declarative_train.components.component import MetricInputs
from declarative_train.components.metrics import METRICS
from declarative_train.core.tensor_spec import TensorSpec
from tests.alone import mark_packs
from tests.components.test_metrics_equal_torchmetrics import (
    CLASSES,
    CPU,
    ROWS,
    Alone,
    Case,
    build,
    feed,
    metric,
    normal,
    numbers,
    over_ranks,
)
from tests.later import Later

sk = Later("sklearn.metrics")
NO_COUNTERPART = {"mean": "the mean of any tensor is not about a target"}
AVERAGES = ("macro", "micro", "weighted")
COUNTED = {"f1": "f1_score", "iou": "jaccard_score", "precision": "precision_score", "recall": "recall_score"}
RANKED = {"auroc": "roc_auc_score", "average_precision": "average_precision_score"}
RANKED_ROWS = {
    "lrap": "label_ranking_average_precision_score",
    "coverage_error": "coverage_error",
    "ranking_loss": "label_ranking_loss",
}
ERRORS = {
    "mae": "mean_absolute_error",
    "mape": "mean_absolute_percentage_error",
    "mse": "mean_squared_error",
    "r2": "r2_score",
}

x, y = normal(ROWS, 4), normal(ROWS, 4, seed=2)
logits, label = normal(ROWS, CLASSES, seed=3), numbers(CLASSES, ROWS)
score, answer = normal(ROWS, seed=4), (normal(ROWS, seed=5) > 0.4).long()
scores, answers = normal(ROWS, 4, seed=6), (normal(ROWS, 4, seed=7) > torch.tensor([-1.0, 0.0, 0.5, 1.0])).long()
rounded, gains = scores.round(), (normal(ROWS, 4, seed=9).abs() * 2).floor()
mask = normal(ROWS, 4, seed=8) > -0.5
years, dates = 1.7e9 + x.double(), 1.7e9 + y.double()  # their squares have no digit left for a spread of 1
one, other = (torch.cat([at, at + size.abs() + 0.1], -1) for at, size in ((x[:, :2], x[:, 2:]), (y[:, :2], y[:, 2:])))


def call(name: str, *args: object, **keys: object) -> Callable[[], Any]:
    return lambda: getattr(sk, name)(*args, **keys)


def masked(name: str, **keys: object) -> Callable[[], Any]:
    """The mean over labels of the metric of the elements that the mask leaves."""
    return lambda: np.mean(
        [
            getattr(sk, name)(answers[mask[:, c], c], (scores[mask[:, c], c] > 0 if keys else scores[mask[:, c], c]))
            for c in range(4)
        ]
    )


def box_ious() -> Any:
    from torchvision import ops

    return ops.box_iou(one, other).diagonal().mean()


def recall_at(k: int) -> Any:
    """torchmetrics' recall of a query, over the rows that have a positive."""
    from torchmetrics.functional.retrieval import retrieval_recall

    rows = [at for at in range(ROWS) if answers[at].any()]
    return np.mean([float(retrieval_recall(scores[at].sigmoid(), answers[at].bool(), top_k=k)) for at in rows])


classes, soft = logits.argmax(1), logits.double().softmax(1)
CASES = [
    Case("accuracy", {"type": "accuracy"}, logits, label, call("accuracy_score", label, classes)),
    Case("accuracy, top 2", {"type": "accuracy", "top_k": 2}, logits, label, call("top_k_accuracy_score", label, soft)),
    Case("accuracy, yes or no", {"type": "accuracy"}, score, answer, call("accuracy_score", answer, score > 0)),
    Case(
        "accuracy of labels",
        {"type": "accuracy"},
        scores,
        answers,
        lambda: 1 - sk.hamming_loss(answers, (scores > 0).long()),
    ),
    Case("perplexity", {"type": "perplexity"}, logits, label, lambda: np.exp(sk.log_loss(label, soft)), tolerance=1e-5),
    Case("box_iou", {"type": "box_iou"}, one, other, box_ious),
    *(Case(name, {"type": name}, x, y, call(function, y, x), tolerance=1e-5) for name, function in ERRORS.items()),
    Case("r2 far from 0", {"type": "r2"}, years, dates, call("r2_score", dates, years), tolerance=1e-6),
    Case("rmse", {"type": "rmse"}, x, y, call("root_mean_squared_error", y.flatten(), x.flatten()), tolerance=1e-5),
    *(
        Case(f"{name}, yes or no", {"type": name}, score, answer, call(function, answer, score > 0))
        for name, function in COUNTED.items()
    ),
    *(
        Case(f"{name}, yes or no", {"type": name}, score, answer, call(function, answer, score))
        for name, function in RANKED.items()
    ),
    *(
        Case(
            f"{name} of classes, {average}",
            {"type": name, "average": average},
            logits,
            label,
            call(function, label, classes, average=average),
        )
        for name, function in COUNTED.items()
        for average in AVERAGES
    ),
    *(
        Case(
            f"{name} of classes, {average}",
            {"type": name, "average": average},
            logits,
            label,
            call(function, F.one_hot(label, CLASSES), soft, average=average),
        )
        for name, function in RANKED.items()
        for average in AVERAGES
    ),
    *(
        Case(
            f"{name} of labels, {average}",
            {"type": name, "average": average},
            scores,
            answers,
            call(function, answers, (scores > 0).long() if name in COUNTED else scores, average=average),
        )
        for name, function in (COUNTED | RANKED).items()
        for average in AVERAGES
    ),
    *(
        Case(f"{name}, {where}", {"type": name}, some, given, call(function, given, some), tolerance=1e-6)
        for name, function in RANKED_ROWS.items()
        for where, some, given in (("scores", scores, answers), ("equal scores", rounded, answers))
    ),
    *(
        Case(
            f"ndcg of {where}, {k}",
            {"type": "ndcg", "k": k},
            some,
            gains,
            call("ndcg_score", gains, some.double(), k=k),
            tolerance=1e-6,
        )
        for where, some in (("scores", scores), ("equal scores", rounded))
        for k in (None, 1, 3)
    ),
    Case("recall_at_k", {"type": "recall_at_k", "k": 2}, scores, answers, lambda: recall_at(2), tolerance=1e-6),
    Case("mcc", {"type": "mcc"}, logits, label, call("matthews_corrcoef", label, classes)),
    Case("mcc, yes or no", {"type": "mcc"}, score, answer, call("matthews_corrcoef", answer, score > 0)),
    *(
        Case(f"{name} of labels, mask", {"type": name}, scores, answers, masked(function, above=0), mask)
        for name, function in COUNTED.items()
    ),
    *(
        Case(f"{name} of labels, mask", {"type": name}, scores, answers, masked(function), mask)
        for name, function in RANKED.items()
    ),
]


@pytest.mark.packs
def test_every_metric_is_compared_or_has_no_counterpart() -> None:
    compared = {str(case.fields["type"]) for case in CASES}
    assert compared | NO_COUNTERPART.keys() == set(METRICS)
    assert not compared & NO_COUNTERPART.keys()


@pytest.mark.parametrize("case", mark_packs(CASES, lambda case: repr(case.fields)), ids=lambda case: case.name)
def test_a_metric_is_theirs(case: Case) -> None:
    wanted = float(case.wanted())
    alone = build(case)
    feed(case, alone, range(ROWS), (9, 1, 13))
    assert float(alone.compute(Alone())) == pytest.approx(wanted, rel=case.tolerance)
    ranks = [build(case) for _ in range(3)]
    feed(case, ranks[0], range(17), (9, 8))
    feed(case, ranks[1], range(17, ROWS), (6,))
    assert [float(value) for value in over_ranks(ranks)] == pytest.approx([wanted] * 3, rel=case.tolerance)


def test_a_label_without_a_yes() -> None:
    """It counts as 0 in f1, as scikit-learn has it, and has no ranking."""
    none = answers.clone()
    none[:, 3] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        f1 = sk.f1_score(none, (scores > 0).long(), average="macro")
    for name, wanted in (("f1", f1), ("auroc", sk.roc_auc_score(none[:, :3], scores[:, :3]))):
        module = build(Case(name, {"type": name}, scores, none, lambda: torch.zeros(())))
        module.update(scores, none, None, None)
        assert float(module.compute(Alone())) == pytest.approx(wanted)


def test_tasks_of_one_shape() -> None:
    """(B, K) is of K labels; `task` says otherwise, and an `average` of one label is reported."""
    pixels = TensorSpec((4, 4))
    for fields, spec, field in (
        ({"task": "binary"}, TensorSpec((4,)), "average"),
        ({}, TensorSpec(()), "average"),
        ({}, pixels, "average"),
        ({}, TensorSpec((4,)), None),
        ({"task": "multilabel"}, pixels, None),
    ):
        found = metric(type="f1", average="macro", **fields).check(MetricInputs(spec, spec))
        assert (found and found.field) == field, (fields, spec)
        assert found is None or found.is_warning
    refused = metric(type="auroc", task="multilabel").check(MetricInputs(TensorSpec(()), TensorSpec(())))
    assert refused is not None
    assert "needs a score for each" in refused.message
    pooled = metric(type="auroc", task="binary").build(MetricInputs(TensorSpec((4,)), TensorSpec((4,))), CPU)
    pooled.update(scores, answers, None, None)
    wanted = sk.roc_auc_score(answers.flatten(), scores.flatten())
    assert float(pooled.compute(Alone())) == pytest.approx(wanted)
