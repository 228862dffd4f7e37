"""Reports on the errors of a model, collected batch by batch: confusion matrix, residuals, and worst samples.

A gatherer collects the values of one output whose meaning is known (`plan/output_semantics.py`). Counts and sums are
exact over all rows; masked and ignored items do not count. In shapes, N is the number of rows and C that of classes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from declarative_train.inference.answers import in_unit, probabilities
from declarative_train.inference.report import ClassScores, Report, WorstSample
from declarative_train.plan.output_semantics import Meaning

Origin = Callable[[], "tuple[str, dict[str, object]]"]
"""Function that returns the location of a sample and the values of its row."""
MOST_CLASSES = 4096  # with more classes, the matrix would be larger than most models
_MOST_KEPT = 10_000_000  # residuals and scores that are kept, for quantiles and areas under the curve
_MOST_POINTS = 4000
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


class _Candidate(NamedTuple):
    """Sample that may be one of the worst. `number`: the sample's index in the input; of samples with equal loss, those
    with the lower index are kept."""

    loss: float
    number: int
    target: object
    predicted: object
    probability: float | None
    origin: Origin

    @property
    def rank(self) -> tuple[float, int]:
        return -self.loss, self.number


class Gatherer(ABC):
    """Base class of gatherers. A gatherer collects, for one output, sums over its values and the `num_worst` samples
    with the largest errors. `first`: index in the input of the first sample of the next batch; the caller sets it
    before each batch."""

    def __init__(self, one: Meaning, num_worst: int) -> None:
        self.one = one
        self.first = 0
        self._num_worst = num_worst
        self._kept: list[_Candidate] = []

    @abstractmethod
    def add(self, values: Mapping[str, torch.Tensor], num_rows: int, origins: Callable[[int], Origin]) -> None:
        """Add one batch. `values`: outputs and fields by name. `num_rows`: number of rows without padding.
        `origins(row)`: returns a function that looks up the file and the row in it from which row `row` of the batch
        was read. That function is called only for reported samples."""

    @abstractmethod
    def report(self) -> Report: ...

    @abstractmethod
    def _join_sums(self, other: Any) -> None:
        """Add the sums of `other`, a gatherer of the same class for other samples."""

    def look_up_origins(self) -> None:
        """Look up the file and the row of each sample with a large loss. After this, the gatherer can be sent to
        another process, which does not have the table."""
        self._kept = [each._replace(origin=partial(_same, *each.origin())) for each in self._kept]

    def join(self, other: Gatherer) -> None:
        """Add the sums and worst samples of `other`, a gatherer from another process."""
        self._kept = sorted((*self._kept, *other._kept), key=lambda each: each.rank)[: self._num_worst]
        self._join_sums(other)

    def _read(self, values: Mapping[str, torch.Tensor], num_rows: int) -> tuple[torch.Tensor, torch.Tensor, Any]:
        """Return output, target and mask of a batch on the CPU, without padding. The mask says which items count; None:
        all."""
        one = self.one
        output = values[one.output][:num_rows].detach().cpu()
        output = output if output.dtype == torch.float64 else output.float()
        assert one.target is not None
        target = values[one.target][:num_rows].detach().cpu()
        mask = None if one.mask is None else values[one.mask][:num_rows].detach().cpu() > 0
        return output, target, mask

    def _keep_worst(
        self,
        losses: np.ndarray,
        describe: Callable[[int], tuple[object, object, float | None]],
        origins: Callable[[int], Origin],
    ) -> None:
        """Add the samples of a batch to the list of samples with the largest losses, and keep only the worst. `losses`:
        (N,), nan for a row without valid items. `describe(row)`: returns the row's target, prediction and probability.
        `origins(row)`: returns a function without arguments that looks up the row's origin (file and row)."""
        if not self._num_worst:
            return
        limit = min(each.loss for each in self._kept) if len(self._kept) == self._num_worst else -np.inf
        found = np.flatnonzero(losses > limit)
        found = found[np.argsort(-losses[found], kind="stable")][: self._num_worst]
        self._kept += [
            _Candidate(float(losses[row]), self.first + int(row), *describe(int(row)), origins(int(row)))
            for row in found
        ]
        self._kept.sort(key=lambda each: each.rank)
        del self._kept[self._num_worst :]

    def _worst(self) -> tuple[WorstSample, ...]:
        made = []
        for kept in self._kept:
            place, row = kept.origin()
            made.append(WorstSample(place, kept.loss, kept.target, kept.predicted, kept.probability, row))
        return tuple(made)


class ClassGatherer(Gatherer):
    """Gatherer of metrics and worst samples, for an output that predicts one of several classes. A sample may have
    several items (tokens, pixels)."""

    def __init__(self, one: Meaning, num_worst: int) -> None:
        super().__init__(one, num_worst)
        size = len(one.classes)
        self._table = np.zeros((size, size), np.int64) if size <= MOST_CLASSES else None
        self._by_class = np.zeros((3, size), np.int64)  # correct, predicted, in the targets
        self._log_loss, self._items = 0.0, 0

    def add(self, values: Mapping[str, torch.Tensor], num_rows: int, origins: Callable[[int], Origin]) -> None:
        output, target, mask = self._read(values, num_rows)
        log_p = probabilities(self.one, output).clamp_min(torch.finfo(output.dtype).tiny).log()
        if target.is_floating_point():
            target = target.movedim(self.one.class_axis + 1, -1).argmax(-1)
        counts = torch.ones_like(target, dtype=torch.bool) if mask is None else mask
        if self.one.ignored is not None:
            counts = counts & (target != self.one.ignored)
        counts = counts & (target >= 0) & (target < len(self.one.classes))
        chosen = log_p.argmax(-1)
        loss = -log_p.gather(-1, target.clamp(0, len(self.one.classes) - 1).long()[..., None])[..., 0]
        wanted, predicted = target[counts].numpy(), chosen[counts].numpy()
        self._count(wanted.astype(np.int64), predicted.astype(np.int64))
        self._log_loss += float(loss[counts].double().sum())
        self._items += int(counts.sum())
        per_row = _mean_of_items(loss, counts)

        def describe(row: int) -> tuple[object, object, float | None]:
            if self.one.items:
                return None, None, None
            names, at = self.one.classes, int(chosen[row])
            return names[int(target[row])], names[at], float(log_p[row, at].exp())

        self._keep_worst(per_row, describe, origins)

    def _count(self, wanted: np.ndarray, predicted: np.ndarray) -> None:
        size = len(self.one.classes)
        self._by_class += np.stack(
            [np.bincount(each, minlength=size) for each in (wanted[wanted == predicted], predicted, wanted)]
        ).astype(np.int64)
        if self._table is not None:
            self._table += np.bincount(wanted * size + predicted, minlength=size * size).reshape(size, size)

    def _join_sums(self, other: ClassGatherer) -> None:
        self._by_class += other._by_class
        if self._table is not None and other._table is not None:
            self._table += other._table
        self._log_loss += other._log_loss
        self._items += other._items

    def report(self) -> Report:
        hits, predicted, wanted = self._by_class
        precision, recall = _ratio(hits, predicted), _ratio(hits, wanted)
        f1 = _ratio(2 * hits, predicted + wanted)
        present = wanted > 0
        metrics = {
            "accuracy": float(hits.sum() / self._items) if self._items else float("nan"),
            "balanced_accuracy": _mean(recall[present]),
            "f1_macro": _mean(f1[(predicted + wanted) > 0]),
            "f1_weighted": float((f1 * wanted)[present].sum() / self._items) if self._items else float("nan"),
            "log_loss": self._log_loss / self._items if self._items else float("nan"),
        }
        rows = zip(self.one.classes, precision, recall, f1, wanted, strict=True)
        classes = tuple(ClassScores(name, float(p), float(r), float(f), int(n)) for name, p, r, f, n in rows)
        table = () if self._table is None else tuple(tuple(map(int, row)) for row in self._table)
        return Report(self.one.name, "class", metrics, classes, table, worst=self._worst())


class BinaryGatherer(Gatherer):
    """Gatherer of metrics and worst samples, for an output that predicts yes or no. It has a confusion matrix for each
    item of a sample."""

    def __init__(self, one: Meaning, num_worst: int) -> None:
        super().__init__(one, num_worst)
        self._size = int(np.prod(one.items)) if one.items else 1
        self._counts = np.zeros((self._size, 2, 2), np.int64)  # by target, by prediction
        self._log_loss, self._items = 0.0, 0
        self._scores: list[np.ndarray] = []
        self._answers: list[np.ndarray] = []

    def add(self, values: Mapping[str, torch.Tensor], num_rows: int, origins: Callable[[int], Origin]) -> None:
        output, target, mask = self._read(values, num_rows)
        is_yes, predicts_yes = target >= 0.5, output > 0
        counts = torch.ones_like(is_yes) if mask is None else mask
        loss = torch.nn.functional.binary_cross_entropy_with_logits(output, target.to(output.dtype), reduction="none")
        flat = [each.reshape(len(output), -1).numpy() for each in (is_yes, predicts_yes, counts)]
        for at in range(self._size):
            yes, predicted, valid = (each[:, at] for each in flat)
            pairs = yes[valid].astype(np.int64) * 2 + predicted[valid]
            self._counts[at] += np.bincount(pairs, minlength=4).reshape(2, 2)
        self._log_loss += float(loss[counts].double().sum())
        self._items += int(counts.sum())
        if sum(map(len, self._scores)) * self._size < _MOST_KEPT and mask is None:
            self._scores.append(output.reshape(len(output), -1).numpy())
            self._answers.append(flat[0])
        names = self.one.classes or ("0", "1")

        def describe(row: int) -> tuple[object, object, float | None]:
            if self._size > 1:
                return flat[0][row].astype(int).tolist(), flat[1][row].astype(int).tolist(), None
            p = float(output.reshape(len(output), -1)[row, 0].sigmoid())
            return names[int(flat[0][row, 0])], names[int(flat[1][row, 0])], p

        self._keep_worst(_mean_of_items(loss, counts), describe, origins)

    def _join_sums(self, other: BinaryGatherer) -> None:
        self._counts += other._counts
        self._log_loss += other._log_loss
        self._items += other._items
        self._scores += other._scores
        self._answers += other._answers

    def report(self) -> Report:
        metrics = {"log_loss": self._log_loss / self._items if self._items else float("nan")}
        metrics["accuracy"] = _part(self._counts[:, 0, 0].sum() + self._counts[:, 1, 1].sum(), self._items)
        scores = np.concatenate(self._scores) if self._scores else np.zeros((0, self._size))
        answers = np.concatenate(self._answers) if self._answers else np.zeros((0, self._size), bool)
        areas = [_area(scores[:, at], answers[:, at]) for at in range(self._size)]
        if len(scores) * self._size == self._items and not np.isnan(areas).any():
            metrics["auroc"] = float(np.mean(areas))
        if self._size > 1:
            named = self.one.columns if len(self.one.columns) == self._size else tuple(map(str, range(self._size)))
            precisions: list[float | None] = [None] * self._size
            if len(scores) * self._size == self._items:
                found = [_average_precision(scores[:, at], answers[:, at]) for at in range(self._size)]
                metrics["average_precision"] = float(np.nanmean(found)) if not np.isnan(found).all() else float("nan")
                precisions = [None if np.isnan(each) else each for each in found]
            classes = tuple(
                replace(_of_yes(name, table), average_precision=precision)
                for name, table, precision in zip(named, self._counts, precisions, strict=True)
            )
            return Report(self.one.name, "yes_no", metrics, classes, worst=self._worst())
        table = self._counts[0]
        names = self.one.classes or ("0", "1")
        classes = (_of_yes(names[0], table[::-1, ::-1]), _of_yes(names[1], table))
        confusion = tuple(tuple(map(int, row)) for row in table)
        return Report(self.one.name, "yes_no", metrics, classes, confusion, worst=self._worst())


class NumberGatherer(Gatherer):
    """Gatherer of metrics and worst samples, for an output that predicts numbers, in the unit of the target's columns.
    A residual is prediction - target."""

    def __init__(self, one: Meaning, num_worst: int) -> None:
        super().__init__(one, num_worst)
        self._count = 0
        self._absolute = self._squared = self._sum = 0.0
        self._mean = self._spread = (
            0.0  # mean and squared deviations of the targets, merged as by Chan, Golub and LeVeque, 1979
        )
        self._residuals: list[np.ndarray] = []
        self._num_kept = 0
        self._points: list[tuple[float, float]] = []

    def add(self, values: Mapping[str, torch.Tensor], num_rows: int, origins: Callable[[int], Origin]) -> None:
        output, target, mask = self._read(values, num_rows)
        predicted = in_unit(self.one, output).numpy()
        wanted = _target_in_unit(self.one, target).numpy()
        counts = np.ones(wanted.shape, bool) if mask is None else mask.numpy()
        apart = predicted - wanted
        self._add(apart[counts], wanted[counts])
        room = _MOST_POINTS - len(self._points)
        self._points += list(zip(wanted[counts][:room].tolist(), predicted[counts][:room].tolist(), strict=True))

        def describe(row: int) -> tuple[object, object, float | None]:
            if wanted[row].size > 1:
                return None, None, None
            return float(wanted[row].reshape(-1)[0]), float(predicted[row].reshape(-1)[0]), None

        distance = torch.from_numpy(np.abs(apart))
        self._keep_worst(_mean_of_items(distance, torch.from_numpy(counts)), describe, origins)

    def _add(self, apart: np.ndarray, wanted: np.ndarray) -> None:
        if not apart.size:
            return
        self._absolute += float(np.abs(apart).sum())
        self._squared += float(np.square(apart).sum())
        self._sum += float(apart.sum())
        mean = float(wanted.mean())
        self._merge_spread(apart.size, mean, float(np.square(wanted - mean).sum()))
        if self._num_kept + apart.size <= _MOST_KEPT:
            self._residuals.append(apart.ravel())
            self._num_kept += apart.size

    def _merge_spread(self, count: int, mean: float, spread: float) -> None:
        if not count:
            return
        total = self._count + count
        self._spread += spread + (mean - self._mean) ** 2 * self._count * count / total
        self._mean += (mean - self._mean) * count / total
        self._count = total

    def _join_sums(self, other: NumberGatherer) -> None:
        self._absolute += other._absolute
        self._squared += other._squared
        self._sum += other._sum
        self._merge_spread(other._count, other._mean, other._spread)
        self._residuals += other._residuals
        self._num_kept += other._num_kept
        self._points = (self._points + other._points)[:_MOST_POINTS]

    def report(self) -> Report:
        metrics = {
            "mae": _part(self._absolute, self._count),
            "rmse": _part(self._squared, self._count) ** 0.5,
            "bias": _part(self._sum, self._count),
            "r2": 1 - self._squared / self._spread if self._spread else float("nan"),
        }
        residuals: dict[str, float] = {}
        if self._residuals and self._num_kept == self._count:
            found = np.quantile(np.concatenate(self._residuals), QUANTILES).tolist()
            residuals = {f"{quantile:.0%}": value for quantile, value in zip(QUANTILES, found, strict=True)}
        return Report(
            self.one.name, "number", metrics, residuals=residuals, worst=self._worst(), points=tuple(self._points)
        )


def _same(place: str, row: dict[str, object]) -> tuple[str, dict[str, object]]:
    return place, row


def gatherers(meanings: Sequence[Meaning], num_worst: int) -> list[Gatherer]:
    kinds: dict[str, type[Gatherer]] = {
        "class": ClassGatherer,
        "count": NumberGatherer,
        "number": NumberGatherer,
        "yes_no": BinaryGatherer,
    }
    return [kinds[one.kind](one, num_worst) for one in meanings]


def _target_in_unit(one: Meaning, target: torch.Tensor) -> torch.Tensor:
    found = target.double()
    if one.unit is None:
        return found
    shape = one.items if len(one.unit.add) > 1 else ()
    multiply, add = (torch.tensor(part, dtype=torch.float64).reshape(shape) for part in one.unit)
    return found * multiply + add


def _mean_of_items(losses: torch.Tensor, counts: torch.Tensor) -> np.ndarray:
    """Return for each row the mean loss of its valid items, (N,), or nan if it has none. `losses`: losses of all items,
    (N, ...). `counts`: whether each item is valid, (N, ...)."""
    flat = losses.double().reshape(len(losses), -1)
    valid = counts.reshape(len(losses), -1)
    number = valid.sum(1)
    mean = (flat * valid).sum(1) / number
    return np.asarray(torch.where(number > 0, mean, torch.full_like(mean, torch.nan)).numpy())


def _of_yes(name: str, table: np.ndarray) -> ClassScores:
    hits, predicted, wanted = table[1, 1], table[:, 1].sum(), table[1].sum()
    precision, recall = _part(hits, predicted, 0.0), _part(hits, wanted, 0.0)
    f1 = _part(2 * hits, predicted + wanted, 0.0)
    return ClassScores(name, precision, recall, f1, int(wanted))


def _average_precision(scores: np.ndarray, answers: np.ndarray) -> float:
    """Return the average precision: the mean of the precisions of all positive items. The precision of an item is the
    share of positives among the items whose score is at least as high. `scores`: score of each item. `answers`: whether
    each item is positive. The result is nan if all items are positive, or none."""
    if not answers.any() or answers.all():
        return float("nan")
    below = np.searchsorted(np.sort(scores), scores, side="left")
    found = np.searchsorted(np.sort(scores[answers]), scores, side="left")
    return float(((answers.sum() - found) / (len(scores) - below))[answers].mean())


def _area(scores: np.ndarray, answers: np.ndarray) -> float:
    """Return the area under the ROC curve: the probability that a positive item has a higher score than a negative one,
    where ties count half (Mann and Whitney, 1947). `answers`: whether each item is positive. The result is nan if all
    items are positive, or none."""
    num_yes, num_no = int(answers.sum()), int((~answers).sum())
    if not num_yes or not num_no:
        return float("nan")
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    firsts = np.searchsorted(ordered, ordered, side="left")
    lasts = np.searchsorted(ordered, ordered, side="right")
    ranks = np.empty(len(scores))
    ranks[order] = (firsts + 1 + lasts) / 2
    return float((ranks[answers].sum() - num_yes * (num_yes + 1) / 2) / (num_yes * num_no))


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Return part / whole, and 0 where `whole` is 0."""
    found: np.ndarray = np.divide(part, whole, out=np.zeros(len(part)), where=whole > 0)
    return found


def _part(part: float, whole: float, otherwise: float = float("nan")) -> float:
    return float(part / whole) if whole else otherwise


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")
