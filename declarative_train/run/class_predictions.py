"""Predicted classes in evaluations: a confusion matrix, and the predictions for K chosen samples, the same ones in each
evaluation.

Counts stay on the device until the end of an evaluation. Then they are summed over the ranks. Predictions for the
chosen samples are collected by a sum too: each rank has a tensor with K rows, in which the rows of samples that other
ranks evaluate are zero."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from declarative_train.data.rank_batches import spread
from declarative_train.engine.devices import exact_device
from declarative_train.plan.output_semantics import Meaning, meanings
from declarative_train.run.event import ClassesPredicted, Picture, SamplePrediction

if TYPE_CHECKING:
    from declarative_train.data.batch import Batch
    from declarative_train.data.spec import FieldSpec
    from declarative_train.engine.collectives import Alone, Ranks
    from declarative_train.engine.step.objective import Values
    from declarative_train.plan.plan import Plan

MOST_CLASSES = 40  # outputs with more classes are not counted: the cells of the image would be too small
NUM_SAMPLES = 8
_LONGEST_SIDE = 128  # of an image, in pixels
_COLOURS = (1, 3)
_PRESENT, _TARGET, _PREDICTED, _PROBABILITY, _HAS_PICTURE = range(5)


def predictions(plan: Plan, device: torch.device) -> Predictions | None:
    """Return the collector of predictions for a run. Return None if there are no evaluations, if the sink tensorboard
    draws no images, or if no output is suitable. An output is suitable if it has 2 to `MOST_CLASSES` classes, and its
    loss has no key `chunks`."""
    settings = plan.logging.sinks.get("tensorboard")
    if settings is None or plan.evaluation is None or not settings.get("pictures", True):
        return None
    whole = {term.input for term in plan.objective.terms if term.component.get("chunks") is None}
    shown = [one for one in meanings(plan) if one.output in whole and _num_classes(one) in range(2, MOST_CLASSES + 1)]
    return Predictions(plan, shown, exact_device(device)) if shown else None


class Predictions:
    """Collector of the classes that the model predicts in an evaluation, from which log sinks draw pictures. In each
    evaluation call `begin`, then `add` for each batch, then `take`; all ranks must make the same calls."""

    def __init__(self, plan: Plan, shown: list[Meaning], device: torch.device) -> None:
        self._plan, self._device = plan, device
        self._classes = [_ClassOutput(one, device) for one in shown]
        self._picture = _picture_field(plan)
        self._wanted = np.zeros(0, np.int64)

    def begin(self, name: str) -> None:
        assert self._plan.evaluation is not None
        total = next(each.num_samples for each in self._plan.data.sets if each.name == name)
        most = self._plan.evaluation.max_samples
        looked_at = total if most is None else min(most, total)
        num = min(NUM_SAMPLES, looked_at)
        self._wanted = spread(np.arange(num) * looked_at // max(num, 1), looked_at, total)
        shape = () if self._picture is None else _scale_down(self._picture.tensor.shape)
        self._pictures = torch.zeros((num, *shape), dtype=torch.float32, device=self._device)
        for each in self._classes:
            each.begin(num)

    def add(self, values: Values, batch: Batch) -> None:
        """Add one batch. `values`: a dict from the names of outputs and fields to tensors. Rows after the first
        `batch.num_rows` are padding and are not counted."""
        if not batch.num_rows:
            return
        rows = np.flatnonzero(np.isin(batch.sample_ids, self._wanted))
        places = np.searchsorted(self._wanted, batch.sample_ids[rows])
        picture = None if self._picture is None else batch.tensors.get(self._picture.name)
        for each in self._classes:
            each.add(values, batch.num_rows, rows, places, has_picture=picture is not None)
        if picture is not None and len(rows):
            self._pictures[places] = _resize(picture[rows], self._pictures.shape[2:]).to(self._device)

    def take(self, name: str, step: int, ranks: Alone | Ranks) -> list[ClassesPredicted]:
        """Return one event for each output that predicts classes. Its counts are sums over all ranks, from the
        evaluation of the set `name`. All ranks must call this; it waits for the device."""
        pictures = ranks.sum(self._pictures).cpu().numpy() if self._pictures.numel() else None
        several = len(self._classes) > 1
        return [each.take((name, step), ranks, self._wanted, pictures, is_named=several) for each in self._classes]


class _ClassOutput:
    """Confusion matrix, and the predictions of some samples, for one output of the model, which predicts a class or a
    yes/no value."""

    def __init__(self, one: Meaning, device: torch.device) -> None:
        self._one, self._device = one, device
        self._num = _num_classes(one)
        self._names = one.classes or ("0", "1")
        self._has_answers = one.kind == "yes_no" or not one.items

    def begin(self, num_samples: int) -> None:
        self._table = torch.zeros(
            self._num**2 + 1, dtype=torch.int64, device=self._device
        )  # the last entry: items that do not count
        self._answers = torch.zeros(
            num_samples if self._has_answers else 0, 5, dtype=torch.float32, device=self._device
        )

    def add(self, values: Values, num_rows: int, rows: np.ndarray, places: np.ndarray, *, has_picture: bool) -> None:
        one, num = self._one, self._num
        assert one.target is not None
        scores, target = values[one.output][:num_rows], values[one.target][:num_rows]
        mask = None if one.mask is None else values[one.mask][:num_rows] > 0
        if one.kind == "yes_no":
            scores, target = scores.reshape(num_rows), target.reshape(num_rows) >= 0.5
            predicted = scores > 0
        else:
            scores = scores.movedim(one.class_axis + 1, -1)
            predicted = scores.argmax(-1)
            if target.is_floating_point():
                target = target.movedim(one.class_axis + 1, -1).argmax(-1)
        target, predicted = target.long(), predicted.long()
        counts = (target >= 0) & (target < num)
        if one.ignored is not None:
            counts &= target != one.ignored
        if mask is not None:
            counts &= mask.reshape(counts.shape)
        pairs = torch.where(counts, target * num + predicted, num**2).reshape(-1)
        self._table.scatter_add_(0, pairs, torch.ones_like(pairs))
        if not self._has_answers or not len(rows):
            return
        chosen = scores[rows].float()
        likely = torch.sigmoid(chosen.abs()) if one.kind == "yes_no" else chosen.softmax(-1).amax(-1)
        valid = counts[rows].float()
        flags = torch.full_like(valid, float(has_picture))
        self._answers[places] = torch.stack([valid, target[rows].float(), predicted[rows].float(), likely, flags], 1)

    def take(
        self,
        about: tuple[str, int],
        ranks: Alone | Ranks,
        wanted: np.ndarray,
        pictures: np.ndarray | None,
        *,
        is_named: bool,
    ) -> ClassesPredicted:
        """Return an event with the confusion matrix, summed over the ranks, and the predictions for the chosen samples.
        `about`: (name of the set, step). `wanted`: indices of the chosen samples in the set. `pictures`: their images,
        or None. `is_named`: the event must name the target, because several outputs predict classes."""
        name, step = about
        table = ranks.sum(self._table)[:-1].view(self._num, self._num).tolist()
        answers = ranks.sum(self._answers).tolist() if self._has_answers else []
        return ClassesPredicted(
            step,
            name,
            self._one.name if is_named else "",
            self._names,
            tuple(map(tuple, table)),
            tuple(self._list_answers(answers, wanted, pictures)),
            time.time(),
        )

    def _list_answers(
        self, answers: list[list[float]], wanted: np.ndarray, pictures: np.ndarray | None
    ) -> Iterator[SamplePrediction]:
        for place, found in enumerate(answers):
            if not found[_PRESENT]:
                continue
            target, predicted = (self._names[int(found[at])] for at in (_TARGET, _PREDICTED))
            picture = None if pictures is None or not found[_HAS_PICTURE] else _as_bytes(pictures[place])
            yield SamplePrediction(int(wanted[place]), target, predicted, found[_PROBABILITY], picture)


def _num_classes(one: Meaning) -> int:
    """Return the number of classes of an output. A single yes/no value has two. Return 0 if the output has no classes:
    it predicts numbers or several yes/no values."""
    if one.kind == "class":
        return len(one.classes)
    return 2 if one.kind == "yes_no" and int(np.prod(one.items)) == 1 else 0


def _picture_field(plan: Plan) -> FieldSpec | None:
    """Return the first field that the model reads and that has the shape of an image, (1 or 3, height, width), or
    None."""
    read = {edge for graph in (plan.batch_graph, plan.graph) for node in graph.nodes for edge in node.inputs.values()}
    for field in plan.data.fields:
        shape = field.tensor.shape
        if field.name in read and len(shape) == 3 and shape[0] in _COLOURS and min(shape[1:]) > 3:
            return field
    return None


def _scale_down(shape: tuple[int, ...]) -> tuple[int, ...]:
    channels, *sides = shape
    scale = min(1.0, _LONGEST_SIDE / max(sides))
    return (channels, *(max(1, round(side * scale)) for side in sides))


def _resize(pictures: torch.Tensor, size: torch.Size) -> torch.Tensor:
    """Resize images (K, channels, height, width) to the given height and width, as float32."""
    pictures = pictures.float()
    if pictures.shape[2:] == size:
        return pictures
    return torch.nn.functional.interpolate(pictures, tuple(size), mode="area")


def _as_bytes(picture: np.ndarray) -> Picture:
    """Return an image (channels, height, width) as bytes. Its minimum becomes 0 and its maximum 255, so that normalised
    images are visible too."""
    low, high = float(picture.min()), float(picture.max())
    channels, height, width = picture.shape
    grey = (picture - low) * (255 / (high - low) if high > low else 0)
    return Picture(height, width, channels, grey.astype(np.uint8).transpose(1, 2, 0).tobytes())
