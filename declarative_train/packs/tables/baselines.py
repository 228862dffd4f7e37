"""Simple models for comparison with a model of table rows: a constant, a linear model and gradient boosting
(scikit-learn). They are fitted to the same training rows, and compared by a metric of the recipe."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from declarative_train.core.machine import install
from declarative_train.inference.report import Comparison
from declarative_train.plan.output_semantics import Meaning, meanings
from declarative_train.plan.subgraph import prune

if TYPE_CHECKING:
    from declarative_train.data.batch import Batch
    from declarative_train.plan.plan import MetricPlan, Plan

Batches = Callable[[], Iterable["Batch"]]
_BATCH = 1024
_MOST_ROWS = 20_000  # largest number of training rows for a model
_MOST_TREES = 100_000  # largest rows x classes: boosting grows a tree for each class
_MOST_VALUES = 20_000_000
_MOST_COLUMNS = 2_000
_MOST_WORDS = 254  # largest number of classes of a column that scikit-learn's trees accept as a category
_CLASS_METRICS = ("accuracy", "auroc", "f1")
_NUMBER_METRICS = ("r2", "rmse", "mae", "mse")


class _Rows(NamedTuple):
    """Rows of a set as scikit-learn needs them. `numbers`: (N, C). `words`: (N, W), categories as class numbers.
    `answers`: (N,), values of the target."""

    numbers: np.ndarray
    words: np.ndarray
    answers: np.ndarray


def compare(plan: Plan, training: Batches, evaluated: Batches) -> Comparison | None:
    """Fit simple models to the batches `training`, and return their metric on the batches `evaluated`. Rows that the
    mask of the loss leaves out do not count. Return None if an input is not a number, category or date, or if the
    target is not one number or class per row. Also return None for counts, windows and weights of rows, and if the
    table is empty or too large."""
    found = meanings(plan)
    if not found or not _is_table(plan, found[0]):
        return None
    one = found[0]
    metric = _choose_metric(plan, one)
    train = _read(plan, one, training, most=_most_rows(one))
    test = _read(plan, one, evaluated)
    if not len(train.answers) or not len(test.answers):
        return None
    is_class = one.kind != "number"
    values = {"majority" if is_class else "mean": _score(metric, one, test.answers, *_constant(train, test, is_class))}
    note = ""
    if find_spec("sklearn") is None:
        note = f"a linear model and gradient boosting need scikit-learn: {install('sklearn')}"
    elif train.numbers.shape[1] + train.words.shape[1] <= _MOST_COLUMNS:
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        for name, fit in (("linear", _linear), ("boosting", _boosting)):
            # one thread: several wait for each other for minutes when other programs use the cores
            with warnings.catch_warnings(), threadpool_limits(1):
                warnings.simplefilter("ignore")  # about convergence, and columns without a value
                values[name] = _score(metric, one, test.answers, *fit(train, test, is_class))
    total = next(each.num_samples for each in plan.data.sets if each.name == "training")
    if len(train.answers) < total and len(values) > 1:
        note = f"baselines are fitted to {len(train.answers):,} of {total:,} training rows"
    return Comparison(metric, values, note)


def compare_set(plan: Plan, name: str) -> Comparison | None:
    """Fit simple models to the training set of a plan, and return their metric on the set `name`. Return None for a
    model to which they cannot be compared (see `compare`). Raises DataError."""
    from declarative_train.data.rank_batches import EvaluationBatches
    from declarative_train.data.shared_sets import prepare_sets
    from declarative_train.data.tensor_sets import of_prepared

    prepared = prepare_sets(plan.data)

    def batches(which: str) -> Iterable[Batch]:
        sets = {which: of_prepared(prepared[which])}
        return EvaluationBatches(plan.data, which, sets, batch_size=_BATCH).iterate()

    return compare(plan, partial(batches, "training"), partial(batches, name))


def _is_table(plan: Plan, one: Meaning) -> bool:
    fields = {field.name: field for field in plan.data.fields}
    target = fields.get(one.field or "")
    if target is None or one.kind == "count" or target.tensor.num_elements != 1 or plan.data.window is not None:
        return False
    if one.mask is not None and (one.mask not in fields or fields[one.mask].tensor.dtype != "bool"):
        return False
    read = [fields[name] for name in _inputs(plan, one)]
    is_plain = all(each.component.get("type") in ("tensor", "category", "date") for each in read)
    columns = sum(each.tensor.num_elements for each in read)
    return is_plain and columns > 0 and columns * next(each.num_samples for each in plan.data.sets) <= _MOST_VALUES


def _inputs(plan: Plan, one: Meaning) -> list[str]:
    """Return the names of the fields from which the model computes its output, except the field `one.field`, the
    target."""
    read = prune(plan, [one.output]).inputs
    return [field.name for field in plan.data.fields if field.name in read and field.name != one.field]


def _most_rows(one: Meaning) -> int:
    return min(_MOST_ROWS, _MOST_TREES // max(len(one.classes), 1))


def _choose_metric(plan: Plan, one: Meaning) -> str:
    """Return the name of the metric by which simple models are compared with the run's model. It is the recipe's first
    metric of this output that is computed for simple models in the same way, else a default for this kind of output.
    `one`: meaning of the output."""
    own = [str(each.component["type"]) for each in plan.objective.metrics if _is_alike(each, one)]
    known = _NUMBER_METRICS if one.kind == "number" else _CLASS_METRICS
    return next((each for each in own if each in known), known[0])


def _is_alike(metric: MetricPlan, one: Meaning) -> bool:
    """Return whether `_score` computes the same as `metric`. The metric must compare the output of `one` with its
    target under its mask, and give all classes equal weight. An F1 score of the positives only does not count."""
    if metric.component["type"] == "f1" and one.kind == "yes_no":  # of the positives only
        return False
    is_macro = metric.component.get("average", "macro") == "macro"
    return is_macro and (metric.input, metric.target, metric.mask) == (one.output, one.target, one.mask)


def _read(plan: Plan, one: Meaning, batches: Batches, most: int | None = None) -> _Rows:
    """Return the inputs and the targets of the rows that count in the batches. If there are more than `most` rows,
    return `most` of them, evenly spaced. `one`: an output of the model, with the names of its target and its mask."""
    fields = {field.name: field for field in plan.data.fields}
    parts: list[tuple[list[np.ndarray], list[np.ndarray], np.ndarray]] = []
    counted = [np.zeros(0, bool)]
    for batch in batches():
        numbers: list[np.ndarray] = []
        words: list[np.ndarray] = []
        tensors = {name: tensor[: batch.num_rows].cpu() for name, tensor in batch.tensors.items()}
        for name in _inputs(plan, one):
            array = tensors[name].reshape(batch.num_rows, -1)
            is_word = fields[name].component.get("type") == "category" and not array.is_floating_point()
            (words if is_word else numbers).append(array.double().numpy())
        assert one.field is not None
        answers = tensors[one.field].reshape(-1).double().numpy()
        parts.append((numbers, words, answers))
        mask = np.ones(len(answers), bool) if one.mask is None else tensors[one.mask].reshape(-1).numpy()
        counted.append(mask if one.ignored is None else mask & (answers != one.ignored))

    def join(at: int) -> np.ndarray:
        rows: list[Any] = [
            np.concatenate(part[at], axis=1) if part[at] else np.zeros((len(part[2]), 0)) for part in parts
        ]
        return np.concatenate(rows) if rows else np.zeros((0, 0))

    answers = np.concatenate([part[2] for part in parts]) if parts else np.zeros(0)
    found = _Rows(*(each[np.concatenate(counted)] for each in (join(0), join(1), answers)))
    if most is None or len(found.answers) <= most:
        return found
    chosen = np.linspace(0, len(found.answers) - 1, most).astype(np.int64)
    return _Rows(*(each[chosen] for each in found))


Fitted = tuple[np.ndarray, "np.ndarray | None", np.ndarray]
"""Predictions (N,), probabilities (N, K) or None, and the K classes."""


def _constant(train: _Rows, test: _Rows, is_class: bool) -> Fitted:
    if not is_class:
        return np.full(len(test.answers), train.answers.mean()), None, np.zeros(0)
    classes, counts = np.unique(train.answers, return_counts=True)
    shares = np.tile(counts / counts.sum(), (len(test.answers), 1))
    return np.full(len(test.answers), classes[counts.argmax()]), shares, classes


def _linear(train: _Rows, test: _Rows, is_class: bool) -> Fitted:
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import LogisticRegression, RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    width = train.numbers.shape[1]
    kinds = (
        (StandardScaler(), np.arange(width)),
        (OneHotEncoder(handle_unknown="ignore"), np.arange(width, width + train.words.shape[1])),
    )
    prepare = make_column_transformer(*(each for each in kinds if len(each[1])))
    model = LogisticRegression(max_iter=1000) if is_class else RidgeCV(np.logspace(-3, 3, 13))
    return _fit(make_pipeline(prepare, model), train, test, is_class)


def _boosting(train: _Rows, test: _Rows, is_class: bool) -> Fitted:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    width = train.numbers.shape[1]
    few = [len(np.unique(column)) <= _MOST_WORDS and column.max() <= _MOST_WORDS for column in train.words.T]
    kind: Any = HistGradientBoostingClassifier if is_class else HistGradientBoostingRegressor
    is_word = [False] * width + few
    return _fit(kind(random_state=0, categorical_features=is_word if any(few) else None), train, test, is_class)


def _fit(model: Any, train: _Rows, test: _Rows, is_class: bool) -> Fitted:
    if is_class and len(np.unique(train.answers)) == 1:
        return _constant(train, test, is_class)
    made = model.fit(np.concatenate([train.numbers, train.words], axis=1), train.answers)
    x = np.concatenate([test.numbers, test.words], axis=1)
    if not is_class:
        return made.predict(x), None, np.zeros(0)
    return made.predict(x), made.predict_proba(x), made.classes_


def _score(
    metric: str, one: Meaning, answers: np.ndarray, found: np.ndarray, shares: np.ndarray | None, classes: np.ndarray
) -> float:
    """Return the value of `metric` for the predictions of a simple model. `one`: meaning of the predicted output;
    errors such as `mae` are converted to its unit. `answers`, `found`: true and predicted values or classes. `shares`:
    for each row, the probability of each of the `classes`; only `auroc` needs it."""
    if metric == "accuracy":
        return float((answers == found).mean())
    if metric == "f1":
        return _mean_f1(answers, found)
    if metric == "auroc":
        assert shares is not None
        areas = [_area(answers == each, shares[:, at]) for at, each in enumerate(classes)]
        known = [area for area in areas if area == area]
        return float(np.mean(known)) if known else float("nan")
    unit = 1.0 if one.unit is None else abs(one.unit.multiply[0])
    apart = (found - answers) * unit
    if metric == "r2":
        spread = ((answers - answers.mean()) ** 2).sum() * unit**2
        return float(1 - (apart**2).sum() / spread) if spread else float("nan")
    squared = float((apart**2).mean())
    errors: Mapping[str, float] = {"mae": float(np.abs(apart).mean()), "mse": squared, "rmse": squared**0.5}
    return errors[metric]


def _mean_f1(answers: np.ndarray, found: np.ndarray) -> float:
    """Return the F1 score, averaged over all classes that occur. `answers`, `found`: true and predicted class of each
    row."""
    scores = []
    for each in np.unique(np.concatenate([answers, found])):
        both = ((answers == each) & (found == each)).sum()
        scores.append(2 * both / ((answers == each).sum() + (found == each).sum()))
    return float(np.mean(scores))


def _area(is_yes: np.ndarray, scores: np.ndarray) -> float:
    """Return the area under the ROC curve: the probability that a positive item has a higher score than a negative one;
    equal scores count as half."""
    num_yes, num_no = int(is_yes.sum()), int((~is_yes).sum())
    if not num_yes or not num_no:
        return float("nan")
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    return float((ranks[place][is_yes].sum() - num_yes * (num_yes + 1) / 2) / (num_yes * num_no))
