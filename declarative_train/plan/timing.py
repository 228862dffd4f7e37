"""Durations of the recipe -> optimizer steps of this run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from declarative_train.components.component import LrSchedule
from declarative_train.data.spec import BatchSpec
from declarative_train.diagnostics.diagnostic import Diagnostic
from declarative_train.plan.checks.samples import no_tokens, past_the_end, schedule_past_the_end
from declarative_train.recipe.recipe import Recipe
from declarative_train.terms.duration import Duration


@dataclass(slots=True)
class Timing:
    """`tokens_per_sample` is None where samples are not made of tokens."""

    recipe: Recipe
    batch: BatchSpec
    num_steps: int
    tokens_per_sample: int | None
    diagnostics: list[Diagnostic] = field(default_factory=list)

    def steps(self, duration: Duration) -> int:
        """Raises ValueError for what cannot become steps."""
        return duration.steps(**self._lengths)

    def exact_steps(self, duration: Duration) -> float:
        """Before rounding up to a whole step."""
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
        """Steps between two times that something is done; longer than the run, it is never done on the way."""
        if duration is None:
            return None
        steps = self._steps_at(path, duration)
        if steps > self.num_steps and self._is_written(path) and not self._is_checked_by_recipe(duration):
            self.diagnostics.append(past_the_end(self.recipe.span(path), duration, steps, self.num_steps))
        return steps

    def warmup(self, path: str, duration: Duration | None) -> int:
        if duration is None:
            return 0
        steps = self._steps_at(path, duration)
        if steps >= self.num_steps > 1:
            at = self.recipe.span(path)
            self.diagnostics.append(past_the_end(at, duration, steps, self.num_steps, is_warmup=True))
        return steps

    def resolved(self, schedule: LrSchedule, warmup: Duration | None) -> LrSchedule:
        """The lr schedule with the durations among its fields in steps, which must fit in the run."""
        try:
            found = schedule.resolved(self.steps)
            rising = 0.0 if warmup is None else self.exact_steps(warmup)
            misfits = () if rising >= self.num_steps else schedule.misfits(self.exact_steps, self.num_steps, rising)
        except ValueError as problem:
            span = self.recipe.key_span("training.lr_schedule")
            self.diagnostics.append(no_tokens(span, str(problem)))
            return schedule
        for misfit in misfits:
            parts = [int(part) if part.isdigit() else part for part in str(misfit.field).split(".")]
            span = self.recipe.span(("training", "lr_schedule", *parts))
            self.diagnostics.append(schedule_past_the_end(span, misfit))
        return found

    def _steps_at(self, path: str, duration: Duration) -> int:
        try:
            return self.steps(duration)
        except ValueError:
            self.diagnostics.append(no_tokens(self.recipe.span(path), str(duration)))
            return 1

    def _is_checked_by_recipe(self, duration: Duration) -> bool:
        """In the unit that the run itself is given in, the recipe alone has shown it (longer-than-run)."""
        return getattr(self.recipe.training, duration.unit, None) is not None

    def _is_written(self, path: str) -> bool:
        """A default is not the user's mistake."""
        span = self.recipe.span(path)
        return span != self.recipe.span(path.rpartition(".")[0]) and span != self.recipe.key_span(path)
