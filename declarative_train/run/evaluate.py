"""Evaluation of a set: exact means in which every sample counts once, for any number of ranks. Sums and counts are
reduced over the ranks once, at the end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import torch

from declarative_train.data.batch import Batch
from declarative_train.engine.devices import exact_device
from declarative_train.engine.step.metrics import Metrics
from declarative_train.engine.step.objective import mean
from declarative_train.engine.step.randomness import Randomness, draws
from declarative_train.run.event import EvaluationDone
from declarative_train.run.loss_window import Terms, no_valid_item, out_of_bounds

if TYPE_CHECKING:
    from declarative_train.engine.collectives import Alone, Ranks
    from declarative_train.engine.step.ema import Average
    from declarative_train.engine.step.objective import Objective
    from declarative_train.plan.plan import Plan
    from declarative_train.run.class_predictions import Predictions
    from declarative_train.run.event import ClassesPredicted, Event

_EVALUATION = 2**32  # random stream of evaluations (`randn_like` in a VAE), apart from that of training


def nan_message(metric: str) -> str:
    """Return a sentence that explains why a metric is nan. `metric`: its name."""
    return f"{metric} is nan: all items are masked, the outputs contain nan, or all targets of the set are equal"


class EvaluableModel(Protocol):
    """Interface of a model that can be evaluated: an `Engine`, or a trained model outside a run."""

    @property
    def device(self) -> torch.device: ...

    @property
    def dp_rank(self) -> int: ...

    @property
    def ranks(self) -> Alone | Ranks: ...

    @property
    def objective(self) -> Objective: ...

    def set_training(self, training: bool) -> None: ...

    def forward(self, batch: Batch) -> dict[str, torch.Tensor] | None: ...


class Evaluator:
    """Evaluator of the sets of a plan.

    `batches`            function that takes a set's name and returns this rank's batches, equally many on every rank
    `watched`            object that collects the predicted classes of an evaluation; None: nothing is collected
    `class_predictions`  events with the classes that `watched` collected in the last evaluation
    `writers`            functions of packs; each takes a step and returns an event, for example with generated texts
    """

    def __init__(
        self,
        plan: Plan,
        engine: EvaluableModel,
        batches: Callable[[str], Iterable[Batch]],
        watched: Predictions | None = None,
        writers: Sequence[Callable[[int], Event]] = (),
    ) -> None:
        self._plan = plan
        self._engine = engine
        self._batches = batches
        of_average = plan.evaluation is not None and plan.evaluation.weights == "ema"
        self._average: Average | None = getattr(engine, "average", None) if of_average else None
        self._watched = watched
        self.writers = writers
        self.class_predictions: list[ClassesPredicted] = []
        self._device = exact_device(engine.device)
        self._metrics = Metrics(plan, self._device, training=False)
        needed = draws(plan.graph, plan.plugins)
        self._reported_empty: set[tuple[str, int]] = set()
        self._reported_bounds: set[tuple[str, int]] = set()
        self._reported_nan: set[str] = set()
        self._randomness = Randomness(plan.seed, (engine.dp_rank, _EVALUATION), engine.device, needed=needed)

    def __call__(self, name: str, step: int) -> tuple[EvaluationDone, list[str]]:
        """Evaluate the set `name` after a step. Return the result as an event, and notices. All ranks must call this
        together. Afterwards the engine is in training mode."""
        begun_s = time.monotonic()
        engine = self._engine
        size = len(engine.objective.terms)
        totals = torch.zeros(2 * size + 1, dtype=torch.float64, device=self._device)
        engine.set_training(False)
        if self._average is not None:
            self._average.exchange()
        if self._watched is not None:
            self._watched.begin(name)
        with torch.no_grad():
            for position, batch in enumerate(self._batches(name)):
                self._randomness.begin(0, position)
                self._add(batch, totals)
            for term, value in engine.objective.rests():
                totals[term] += value.double()
        if self._average is not None:
            self._average.exchange()
        engine.set_training(True)
        sums, counts, rows = torch.split(engine.ranks.sum(totals), [size, size, 1])
        metrics = self._metrics.take(engine.ranks)
        terms = [mean(*pair) for pair in zip(sums.tolist(), counts.tolist(), strict=True)]
        values = engine.objective.by_name(terms) | metrics
        if self._watched is not None:
            self.class_predictions = self._watched.take(name, step, engine.ranks)
        done = EvaluationDone(
            step=step,
            epoch=-(-step // self._plan.batch.steps_per_epoch),
            set=name,
            values={f"{name}/{key}": value for key, value in values.items()},
            num_samples=int(rows.item()) // self._plan.layout.size("context"),  # whose ranks read the same rows
            seconds=time.monotonic() - begun_s,
            time_unix_s=time.time(),
        )
        notices = [*self._find_empty(name, terms), *self._find_out_of_bounds(name, terms)]
        return done, [*notices, *self._find_nan(name, metrics)]

    def _find_out_of_bounds(self, name: str, terms: Terms) -> list[str]:
        """Return a notice for each loss term whose value on the set `name` is impossible for its loss, such as a
        negative cross entropy. Each term is reported once per set."""
        notices = []
        for term, value in enumerate(terms):
            why = out_of_bounds(self._engine.objective, term, value, f"on `{name}`")
            if why is not None and (name, term) not in self._reported_bounds:
                self._reported_bounds.add((name, term))
                notices.append(why)
        return notices

    def _find_empty(self, name: str, terms: Terms) -> list[str]:
        """Return a notice for each loss term without valid items (all masked or ignored); each term is reported once
        per set."""
        found = {(name, term) for term, value in enumerate(terms) if value is None} - self._reported_empty
        self._reported_empty |= found
        return [f"{name}: {no_valid_item(self._engine.objective, term)}" for _, term in sorted(found)]

    def _find_nan(self, name: str, metrics: Mapping[str, float]) -> list[str]:
        """Return a notice for each metric that is nan; each metric is reported once per set."""
        found = {f"{name}/{metric}" for metric, value in metrics.items() if math.isnan(value)} - self._reported_nan
        self._reported_nan |= found
        return [nan_message(metric) for metric in sorted(found)]

    def _add(self, batch: Batch, totals: torch.Tensor) -> None:
        """Run the model on a batch. Add its loss sums, item counts and number of rows to `totals`, a tensor on the
        device, and update the metrics."""
        engine = self._engine
        values = engine.forward(batch)
        if values is None:
            return
        if self._watched is not None:
            self._watched.add(values, batch)
        row_weight = None if batch.row_weight is None else batch.row_weight.to(self._device)
        size = len(engine.objective.terms)
        totals[:size] += torch.stack([value.double() for value in engine.objective.sums(values, row_weight)])
        totals[size : 2 * size] += engine.objective.counts(values, row_weight, batch.num_rows)
        totals[2 * size] += batch.num_rows
        self._metrics.update(values, row_weight)
