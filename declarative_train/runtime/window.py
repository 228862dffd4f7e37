"""Losses and metrics on the device until the host asks: the means of a logging window and of an epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from declarative_train.runtime.engines.engine import Engine, StepResult
from declarative_train.runtime.failures import NonFiniteLoss
from declarative_train.terms.amounts import counted


@dataclass(slots=True)
class Means:
    """Sums that become means. The loss is a mean over steps, each the mean of its global batch; a metric is a mean over
    rows, from parts that are exact over theirs."""

    num_steps: int = 0
    num_rows: int = 0
    terms: list[float] = field(default_factory=list)
    metrics: dict[str, tuple[float, int]] = field(default_factory=dict)  # sum over rows, rows

    def add(self, terms: list[float], num_steps: int, metrics: dict[str, float], num_rows: int) -> None:
        old = self.terms or [0.0] * len(terms)
        self.terms = [total + value for total, value in zip(old, terms, strict=True)]
        self.num_steps += num_steps
        self.num_rows += num_rows
        for name, value in metrics.items():
            if not math.isnan(value):  # nan: there was no item
                total, rows = self.metrics.get(name, (0.0, 0))
                self.metrics[name] = total + value * num_rows, rows + num_rows

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "metrics": {name: list(pair) for name, pair in self.metrics.items()}}

    @classmethod
    def from_json(cls, entries: Mapping[str, Any]) -> Means:
        """Of nothing: no step yet."""
        metrics = {name: (float(total), int(rows)) for name, (total, rows) in entries.get("metrics", {}).items()}
        return cls(**{**entries, "metrics": metrics})

    def term_means(self) -> list[float]:
        return [total / self.num_steps if self.num_steps else math.nan for total in self.terms]

    def metric_means(self) -> dict[str, float]:
        return {name: total / rows for name, (total, rows) in self.metrics.items()}


class Window:
    """`add` after every step, without the host waiting; `flush` where it waits anyway."""

    def __init__(self, engine: Engine, *, skips: bool, epoch: Means | None = None) -> None:
        self._engine = engine
        self._skips = skips
        self._num_terms = len(engine.objective.terms)
        self._steps: list[int] = []
        self._results: list[StepResult] = []
        self._num_rows = 0
        self.logging = Means()
        self.epoch = epoch or Means()  # that of a resumed run has begun
        self.grad_norm: torch.Tensor | None = None

    def add(self, step: int, result: StepResult, num_rows: int) -> None:
        self._steps.append(step)
        self._results.append(result)
        self._num_rows += num_rows
        if result.grad_norm is not None:
            self.grad_norm = result.grad_norm

    def flush(self) -> list[str]:
        """Read everything that waits; notices on steps that were left out. All ranks must call it after the same step.

        Raises NonFiniteLoss when the plan says stop.
        """
        if not self._steps:
            return []
        engine = self._engine
        per_step = self._per_step()
        finite = [all(math.isfinite(value) for value in values) for values in per_step]
        notices = []
        if not all(finite):
            notices = [self._not_finite(per_step, finite)]
        kept = [values for values, good in zip(per_step, finite, strict=True) if good]
        sums = [sum(column) for column in zip(*kept, strict=True)] or [0.0] * self._num_terms
        metrics = engine.metrics.take(engine.ranks)
        for means in (self.logging, self.epoch):
            means.add(sums, len(kept), metrics, self._num_rows)
        notices += self._skipped(finite)
        self._steps, self._results, self._num_rows = [], [], 0
        return notices

    def take_logging(self) -> Means:
        taken, self.logging = self.logging, Means()
        return taken

    def take_epoch(self) -> Means:
        taken, self.epoch = self.epoch, Means()
        return taken

    def _per_step(self) -> list[list[float]]:
        """(steps, L): every term's value over its global batch. The host waits for the device once."""
        results = self._results
        shares = self._engine.ranks.sum(self._shares())
        if isinstance(results[0].counts, torch.Tensor):
            both = torch.stack([shares, torch.stack([result.counts for result in results])])  # type: ignore[misc]
            sums, counts = both.tolist()
        else:
            sums, counts = shares.tolist(), [result.counts for result in results]
        return [[divided(*pair) for pair in zip(*step, strict=True)] for step in zip(sums, counts, strict=True)]

    def _shares(self) -> torch.Tensor:
        """(steps, L) float64 on the device: the sums of this rank's chunks, equally many in every step."""
        flat = [value for result in self._results for sums in result.sums for value in sums]
        num_steps, size = len(self._results), self._num_terms
        if not flat:  # a stage that has no loss
            return torch.zeros((num_steps, size), dtype=torch.float64, device=self._engine.device)
        chunks = torch.stack(flat).double().view(num_steps, -1, size)
        return chunks[:, 0] if chunks.shape[1] == 1 else chunks.sum(1)

    def _not_finite(self, per_step: list[list[float]], finite: list[bool]) -> str:
        first = finite.index(False)
        term = next(index for index, value in enumerate(per_step[first]) if not math.isfinite(value))
        name = self._engine.objective.terms[term].name
        what = "the loss" if self._num_terms == 1 else f"loss term `{name}`"
        step, value = self._steps[first], per_step[first][term]
        if not self._skips:
            raise NonFiniteLoss(
                f"{what} is {value}; help: lower training.optimizer.lr, set training.clip_grad_norm, or set "
                "training.non_finite: skip",
                step,
            )
        return f"{what} was {value} at step {step}: {finite.count(False)} of {counted(len(finite), 'update')} left out"

    def _skipped(self, finite: list[bool]) -> list[str]:
        """Steps with a finite loss whose gradients were not; fp16 finds its scale in this way, and says nothing."""
        flags = [result.finite for result in self._results if result.finite is not None]
        if not flags or self._engine.loss_scale is not None or not all(finite):
            return []
        good = torch.stack(flags).tolist()
        if all(good):
            return []
        step = self._steps[good.index(False)]
        return [
            f"a gradient was not finite at step {step}: {good.count(False)} of {counted(len(good), 'update')} left out"
        ]


def divided(total: float, count: float) -> float:
    """The mean; 0 where a whole global batch held no valid item."""
    return total / count if count else 0.0
