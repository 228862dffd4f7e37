"""Means of losses and metrics over a window (the steps between two logging steps) and over an epoch. The values of the
steps stay on the device until `LossWindow.flush`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

import torch

from declarative_train.core.amounts import format_count
from declarative_train.engine.failures import NonFiniteLoss, NoValidItem
from declarative_train.engine.step.objective import Objective, mean

if TYPE_CHECKING:
    from declarative_train.engine.engine import Engine, StepResult

_ROUNDING = 1e-3  # how far rounding may move a loss out of its bounds
Terms = list[float | None]  # value of each loss term over a global batch; None: it had no valid item


@dataclass(slots=True)
class Means:
    """Sums from which the means of loss terms and metrics are computed. A loss term has one value per step, over the
    global batch. Its mean is taken over the steps in which it has valid items. The mean of a metric is taken over
    rows."""

    num_steps: int = 0
    terms: list[tuple[float, int]] = field(default_factory=list)  # sum over steps, number of steps with an item
    metrics: dict[str, tuple[float, int]] = field(default_factory=dict)  # sum over rows, number of rows

    def add(self, steps: list[Terms], metrics: dict[str, float], num_rows: int) -> None:
        """Add the loss terms of each of `steps`, and metrics. `metrics`: means over `num_rows` rows; a nan is not
        added. The sums are bitwise equal whether steps are added in one call or in several."""
        self.num_steps += len(steps)
        if steps:
            old = self.terms or [(0.0, 0)] * len(steps[0])
            self.terms = [
                _add_column(*sums, column) for sums, column in zip(old, zip(*steps, strict=True), strict=True)
            ]
        for name, value in metrics.items():
            if not math.isnan(value):  # nan: there was no item
                total, rows = self.metrics.get(name, (0.0, 0))
                self.metrics[name] = total + value * num_rows, rows + num_rows

    @property
    def is_empty(self) -> bool:
        """True if steps were added, but no loss term had a valid item in any of them (all were masked or ignored)."""
        return self.num_steps > 0 and not any(steps for _, steps in self.terms)

    def as_json(self) -> dict[str, Any]:
        metrics = {name: list(pair) for name, pair in self.metrics.items()}
        return {"num_steps": self.num_steps, "terms": [list(pair) for pair in self.terms], "metrics": metrics}

    @classmethod
    def from_json(cls, entries: Mapping[str, Any]) -> Means:
        """Return Means with the sums that `as_json` returned; for an empty mapping, Means without steps."""
        terms = [(float(total), int(steps)) for total, steps in entries.get("terms", ())]
        metrics = {name: (float(total), int(rows)) for name, (total, rows) in entries.get("metrics", {}).items()}
        return cls(entries.get("num_steps", 0), terms, metrics)

    def term_means(self, num_terms: int) -> Terms:
        """Return the mean of each loss term; None for a term that had no valid item in any step. If no step was added,
        because no loss was finite, all means are nan."""
        if not self.terms:
            return [math.nan] * num_terms
        return [total / steps if steps else None for total, steps in self.terms]

    def metric_means(self) -> dict[str, float]:
        return {name: total / rows for name, (total, rows) in self.metrics.items()}


class LossWindow:
    """Losses and metrics of the steps since the last logging step. `add` is called after every step and does not wait
    for the device; `exchange` and `flush` do. `skips`: a step with a loss of nan or inf is skipped; otherwise it ends
    the run."""

    def __init__(
        self, engine: Engine, logging: Means | None = None, epoch: Means | None = None, *, skips: bool
    ) -> None:
        self._engine = engine
        self._skips = skips
        self._num_terms = len(engine.objective.terms)
        self._steps: list[int] = []
        self._results: list[StepResult] = []
        self._summed: list[Terms] = []  # terms of the first of these steps, summed over the ranks
        self._num_rows = 0
        self._reported_empty: set[int] = set()
        self._reported_bounds: set[int] = set()
        self.logging = logging or Means()  # a resumed run continues its windows
        self.epoch = epoch or Means()
        self.grad_norm: torch.Tensor | None = None

    def add(self, step: int, result: StepResult, num_rows: int) -> None:
        self._steps.append(step)
        self._results.append(result)
        self._num_rows += num_rows
        if result.grad_norm is not None:
            self.grad_norm = result.grad_norm

    def exchange(self, votes: Sequence[float]) -> list[float]:
        """Sum `votes` over all ranks and return the sums. Votes are numbers by which the ranks agree on something, such
        as a request to stop. The same message sums the losses of the steps since the last call. All ranks must call
        this after the same step. It waits for the device."""
        summed, votes = sum_over_ranks(self._engine, self._results[len(self._summed) :], votes)
        self._summed += summed
        return votes

    def flush(self) -> list[str]:
        """Add losses and metrics of the steps since the last flush to the means. Return notices on skipped steps and on
        loss terms without valid items or with impossible values. All ranks must call this after the same step.

        Raises NonFiniteLoss for a loss that is nan or infinite, if such steps are not skipped."""
        if not self._steps:
            return []
        engine = self._engine
        if len(self._summed) < len(self._results):
            self.exchange(())
        per_step = self._summed
        finite = [all(value is None or math.isfinite(value) for value in values) for values in per_step]
        notices = []
        if not all(finite):
            notices = [self._report_loss(per_step, finite)]
        kept = [values for values, good in zip(per_step, finite, strict=True) if good]
        metrics = engine.metrics.take(engine.ranks)
        for means in (self.logging, self.epoch):
            means.add(kept, metrics, self._num_rows)
        notices += self._find_skipped(finite)
        notices += self._find_empty(per_step)
        notices += self._find_out_of_bounds(per_step)
        self._steps, self._results, self._summed, self._num_rows = [], [], [], 0
        return notices

    def take_logging(self) -> Means:
        taken, self.logging = self.logging, Means()
        return taken

    def take_epoch(self) -> Means:
        taken, self.epoch = self.epoch, Means()
        return taken

    def require_items(self) -> None:
        """Raise NoValidItem if no loss term had a valid item in this epoch, because then the model learned nothing."""
        if self.epoch.is_empty:
            raise NoValidItem(
                f"no item was valid in {format_count(self.epoch.num_steps, 'step')}: the mask or ignore_index excludes "
                "every target, and nothing was learned; help: check the mask, the ignore_index and the targets of "
                "the "
                "objective"
            )

    def _find_empty(self, per_step: list[Terms]) -> list[str]:
        """Return a notice for each loss term that had no valid item in at least one of the steps; each term is reported
        once per session. `per_step`: values of the terms in each step."""
        if not any(None in values for values in per_step):
            return []
        notices = []
        for step, values in zip(self._steps, per_step, strict=True):
            for index, value in enumerate(values):
                if value is None and index not in self._reported_empty:
                    self._reported_empty.add(index)
                    items = no_valid_item(self._engine.objective, index)
                    notices.append(f"{items} at step {step}: such steps are not part of the means")
        return notices

    def _find_out_of_bounds(self, per_step: list[Terms]) -> list[str]:
        """Return a notice for each loss term with a value that its loss cannot have, for example below 0. Each term is
        reported only once per session. `per_step`: values of the terms in each step."""
        notices = []
        for step, values in zip(self._steps, per_step, strict=True):
            for index, value in enumerate(values):
                if index in self._reported_bounds:
                    continue
                if (why := out_of_bounds(self._engine.objective, index, value, f"at step {step}")) is not None:
                    self._reported_bounds.add(index)
                    notices.append(why)
        return notices

    def _report_loss(self, per_step: list[Terms], finite: list[bool]) -> str:
        """Return a notice that steps were skipped because their loss was nan or infinite. If the run must stop instead,
        raise NonFiniteLoss. `per_step`: values of the loss terms in each step. `finite`: for each step, whether its
        loss was finite; at least one is False."""
        first = finite.index(False)
        term = next(
            index for index, value in enumerate(per_step[first]) if value is not None and not math.isfinite(value)
        )
        name = self._engine.objective.terms[term].name
        what = "the loss" if self._num_terms == 1 else f"loss term `{name}`"
        step, value = self._steps[first], per_step[first][term]
        if not self._skips:
            hint = "lower training.optimizer.lr, set training.clip_grad_norm, or set training.non_finite: skip"
            if step == 1:  # the cause is in the initial weights or the first batch, not in an update
                hint = "no update was made yet: check for missing or huge values in the data, and for a logarithm, "
                hint += "a root or a division of 0 in the expressions"
            raise NonFiniteLoss(f"{what} is {value}; help: {hint}", step)
        return (
            f"{what} was {value} at step {step}: {finite.count(False)} of {format_count(len(finite), 'update')} skipped"
        )

    def _find_skipped(self, finite: list[bool]) -> list[str]:
        """Return a notice on steps that were skipped because a gradient was nan or infinite. Return no notice for fp16,
        where the search for the loss scale makes such steps on purpose."""
        flags = [result.finite for result in self._results if result.finite is not None]
        if not flags or self._engine.loss_scale is not None or not all(finite):
            return []
        good = torch.stack(flags).tolist()
        if all(good):
            return []
        step = self._steps[good.index(False)]
        return [
            f"a gradient was not finite at step {step}: {good.count(False)} of {format_count(len(good), 'update')} "
            "skipped"
        ]


def compute_terms(engine: Engine, results: Sequence[StepResult]) -> list[Terms]:
    """Return, for each step, the value of each loss term over the global batch; None for a term without valid items.
    The host waits for the device once."""
    return sum_over_ranks(engine, results, ())[0]


def sum_over_ranks(
    engine: Engine, results: Sequence[StepResult], votes: Sequence[float]
) -> tuple[list[Terms], list[float]]:
    """Return the values of the loss terms in each step (see `compute_terms`), and the sum over all ranks of each number
    in `votes`. Both are computed with a single collective."""
    shares = _local_sums(engine, results)
    summed = engine.ranks.sum(torch.cat([shares.reshape(-1), shares.new_tensor(votes)]))
    if votes and engine.position.tensor is not None:  # not in `engine.ranks`: they have the same losses
        summed[-len(votes) :] = engine.position.tensor.sum(summed[-len(votes) :])
    divisors: Sequence[Any] = [result.counts for result in results]
    counts = [each for each in divisors if isinstance(each, torch.Tensor)]
    if counts:
        summed = torch.cat([torch.stack(counts).reshape(-1), summed])
    found, size = summed.tolist(), len(engine.objective.terms)
    rows = [found[at : at + size] for at in range(0, len(found) - len(votes), size)]
    if counts:
        divisors, rows = rows[: len(results)], rows[len(results) :]
    terms = [[mean(*pair) for pair in zip(*step, strict=True)] for step in zip(rows, divisors, strict=True)]
    return terms, found[len(found) - len(votes) :]


def _local_sums(engine: Engine, results: Sequence[StepResult]) -> torch.Tensor:
    """Return this rank's sum of each loss term in each step, over all chunks (forwards) of the step: a float64 tensor
    (steps, L) on the device. It is 0 in a pipeline stage without loss."""
    flat = [value for result in results for sums in result.sums for value in sums]
    num_steps, size = len(results), len(engine.objective.terms)
    if not flat:  # a pipeline stage without loss
        return torch.zeros((num_steps, size), dtype=torch.float64, device=engine.device)
    chunks = torch.stack(flat).double().view(num_steps, -1, size)
    return chunks[:, 0] if chunks.shape[1] == 1 else chunks.sum(1)


def _add_column(total: float, num_steps: int, values: Sequence[float | None]) -> tuple[float, int]:
    found = [value for value in values if value is not None]
    return reduce(add, found, total), num_steps + len(found)  # not `sum`, which rounds differently since Python 3.12


def no_valid_item(objective: Objective, term: int) -> str:
    """Return the beginning of a message on a loss term that has no valid items. `term`: index of the term."""
    name = f" of loss term `{objective.terms[term].name}`" if len(objective.terms) > 1 else ""
    return f"no item{name} was valid (its mask or ignore_index excludes every target)"


def out_of_bounds(objective: Objective, term: int, value: float | None, at: str) -> str | None:
    """Return a notice if `value` is outside the bounds of a term's loss; otherwise None. `term`: index of the term.
    `at`: text that says when the value occurred, such as `at step 3`."""
    least, most = objective.bounds[term]
    if value is None or not math.isfinite(value) or least - _ROUNDING <= value <= most + _ROUNDING:
        return None
    what = f"loss term `{objective.terms[term].name}`" if len(objective.terms) > 1 else "the loss"
    wanted = f"is {least:g} or more" if math.isinf(most) else f"is from {least:g} to {most:g}"
    return (
        f"{what} is {value:.6g} {at}, but `{objective.terms[term].component['type']}` {wanted}: its input, target "
        "or mask is not valid for this loss, which needs, for example, log-probabilities, shares or weights of 0 or "
        "more"
    )
