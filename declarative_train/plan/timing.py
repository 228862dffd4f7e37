"""Batch sizes and durations of a run: the BatchSpec, the number of steps, and the conversion of durations to steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import Any

from declarative_train.components.component import LrSchedule
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.duration import Duration
from declarative_train.data.spec import BatchSpec, DataSpec
from declarative_train.plan.checks.samples import (
    average_longer_than_run,
    batch_larger_than_data,
    lr_vanishes,
    no_tokens,
    past_the_end,
    schedule_past_the_end,
)
from declarative_train.recipe.batch import accumulation, data_parallel_size, has_axis, num_microbatches
from declarative_train.recipe.recipe import Recipe

_LEAST_STEPS, _VANISHES = 10, 1e-4


@dataclass(slots=True)
class Timing:
    """Conversion of durations (`3 epochs`, `5%`) to optimizer steps, for a run of `num_steps` steps.
    `tokens_per_sample`: None if samples are not texts. `diagnostics`: errors and warnings that the methods add."""

    recipe: Recipe
    batch: BatchSpec
    num_steps: int
    tokens_per_sample: int | None
    diagnostics: list[Diagnostic] = field(default_factory=list)

    def steps(self, duration: Duration) -> int:
        """Return a duration in optimizer steps, rounded up. Raises ValueError if it cannot be converted."""
        return duration.steps(**self._lengths)

    def exact_steps(self, duration: Duration) -> float:
        """Return a duration in optimizer steps, not rounded."""
        return duration.exact_steps(**self._lengths)

    @property
    def _lengths(self) -> dict[str, Any]:
        return {
            "steps_per_epoch": self.batch.steps_per_epoch,
            "global_batch_size": self.batch.global_batch_size,
            "num_steps": self.num_steps,
            "tokens_per_sample": self.tokens_per_sample,
        }

    def interval(self, path: str, duration: Duration | None) -> int | None:
        """Return an interval in steps; None if it is not set. Warn if it is longer than the run. `path`: key of the
        interval in the recipe (such as `evaluation.every`)."""
        if duration is None:
            return None
        steps = self._steps_at(path, duration)
        if steps > self.num_steps and self._is_written(path) and not self._is_checked_by_recipe(duration):
            self.diagnostics.append(past_the_end(self.recipe.span(path), duration, steps, self.num_steps))
        return steps

    def warmup(self, path: str, duration: Duration | None) -> int:
        """Return the length of the warm-up in steps; report an error if it is not shorter than the run."""
        if duration is None:
            return 0
        steps = self._steps_at(path, duration)
        if steps >= self.num_steps > 1:
            at = self.recipe.span(path)
            self.diagnostics.append(past_the_end(at, duration, steps, self.num_steps, is_warmup=True))
        return steps

    def decay(self, path: str, decay: float) -> float:
        """Return `decay` unchanged. Warn if a moving average with this decay covers more than a third of the run.
        `path`: key of the decay in the recipe."""
        if round(3 / (1 - decay)) > self.num_steps:
            self.diagnostics.append(average_longer_than_run(self.recipe.span(path), decay, self.num_steps))
        return decay

    def resolve(self, schedule: LrSchedule, warmup: Duration | None) -> LrSchedule:
        """Return the lr schedule with its durations converted to steps. Report durations that are longer than the
        run."""
        try:
            found = schedule.resolve(self.steps)
            rising = 0.0 if warmup is None else self.exact_steps(warmup)
            errors = (
                () if rising >= self.num_steps else schedule.check_milestones(self.exact_steps, self.num_steps, rising)
            )
        except ValueError as problem:
            span = self.recipe.key_span("training.lr_schedule")
            self.diagnostics.append(no_tokens(span, str(problem)))
            return schedule
        for shape_error in errors:
            parts = [int(part) if part.isdigit() else part for part in str(shape_error.field).split(".")]
            span = self.recipe.span(("training", "lr_schedule", *parts))
            self.diagnostics.append(schedule_past_the_end(span, shape_error))
        return found

    def check_lr(self, schedule: LrSchedule, num_warmup_steps: int) -> None:
        """Warn if a schedule falls to almost zero before the middle of the run. `schedule`: schedule whose durations
        are in steps. Recipes with plugins and very short runs are not checked."""
        if self.recipe.plugins:  # whose factors may fail
            return
        middle = self.num_steps // 2
        factors = [schedule.factor(step, self.num_steps, num_warmup_steps) for step in (0, num_warmup_steps, middle)]
        if self.num_steps < _LEAST_STEPS or factors[2] >= _VANISHES * max(factors):
            return
        low, high = num_warmup_steps, middle
        while low < high:
            step = (low + high) // 2
            is_low = schedule.factor(step, self.num_steps, num_warmup_steps) < _VANISHES * max(factors)
            low, high = (low, step) if is_low else (step + 1, high)
        span = self.recipe.span("training.lr_schedule")
        self.diagnostics.append(lr_vanishes(span, low + 1, self.num_steps))

    def _steps_at(self, path: str, duration: Duration) -> int:
        try:
            return self.steps(duration)
        except ValueError:
            self.diagnostics.append(no_tokens(self.recipe.span(path), str(duration)))
            return 1

    def _is_checked_by_recipe(self, duration: Duration) -> bool:
        """Return whether a check of the recipe (`longer-than-run`) already compares the duration with the length of the
        run. It does if the recipe gives both in the same unit, such as epochs."""
        return getattr(self.recipe.training, duration.unit, None) is not None

    def _is_written(self, path: str) -> bool:
        """Return whether the recipe itself sets the key `path`. If it does not, the value is a default and not a
        mistake of the user, so nothing is reported."""
        span = self.recipe.span(path)
        return span != self.recipe.span(path.rpartition(".")[0]) and span != self.recipe.key_span(path)


def batch_of(recipe: Recipe, data: DataSpec) -> tuple[BatchSpec | None, list[Diagnostic]]:
    """Return the batch sizes of a run, and diagnostics. The sizes are None if an epoch would have no step. Checks of
    the recipe (R003, P001) have made sure before that the global batch can be divided."""
    training, parallelism, layout = recipe.training, recipe.mode, recipe.layout
    num_samples = data.set("training").num_samples
    size = training.global_batch_size
    drops = data.last_batch == "drop"
    diagnostics = []
    if size > num_samples:
        span = recipe.span("training.global_batch_size")
        diagnostics.append(batch_larger_than_data(span, size, num_samples, drops=drops))
        if drops:
            return None, diagnostics
    steps = accumulation(training, parallelism, layout)
    assert steps is not None, "R003 comes first"
    ranks, parts = data_parallel_size(parallelism, layout), num_microbatches(parallelism)
    return BatchSpec(
        global_batch_size=size,
        data_parallel_size=ranks,
        accumulation=steps,
        microbatch_size=size // (ranks * steps * parts),
        num_microbatches=parts,
        steps_per_epoch=num_samples // size if drops else ceil(num_samples / size),
        pad_to_full=has_axis(parallelism, layout, "pipeline") or training.compile,
    ), diagnostics


def num_steps_of(recipe: Recipe, batch: BatchSpec) -> int:
    """Return the number of optimizer steps of a run. If a length in epochs is not a whole number of steps, it is
    rounded up."""
    training = recipe.training
    if training.steps is not None:
        return training.steps
    assert training.epochs is not None, "R004 comes first"
    return max(1, ceil(round(training.epochs * batch.steps_per_epoch, 9)))
