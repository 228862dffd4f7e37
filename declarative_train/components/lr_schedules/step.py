"""Stairs: a drop every so often, or at named moments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from declarative_train.components.component import LrSchedule, Misfit
from declarative_train.components.lr_schedules.duration_field import DurationText, in_steps, num_steps_of
from declarative_train.components.lr_schedules.warmup import warmup_factor
from declarative_train.terms.amounts import counted
from declarative_train.terms.duration import Duration, parse_duration


class Step(LrSchedule):
    """Drops by `gamma` again and again: `every: 30 epochs`, or at `milestones: [30 epochs, 60 epochs]`.

    Both count from the start of the run, its warm-up included.
    """

    type: Literal["step"] = "step"
    gamma: float = Field(0.1, gt=0, le=1)
    """The factor of one drop."""
    every: DurationText | None = None
    """How long each stair is. Either this or `milestones`."""
    milestones: tuple[DurationText, ...] | None = Field(None, min_length=1)
    """When it drops, from the start of the run."""

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.every is None) == (self.milestones is None):
            raise ValueError("`step` needs either `every` (such as `30 epochs`) or `milestones`, and not both")
        return self

    def factor(self, step: int, num_steps: int, num_warmup_steps: int) -> float:
        if self.every is not None:
            drops = step // num_steps_of(self.every)
        else:
            drops = sum(step >= num_steps_of(milestone) for milestone in self.milestones or ())
        return warmup_factor(step, num_warmup_steps) * float(self.gamma**drops)

    def resolved(self, to_steps: Callable[[Duration], int]) -> Step:
        def steps(text: str) -> str:
            return in_steps(to_steps(parse_duration(text)))

        return self.model_copy(
            update={
                "every": self.every and steps(self.every),
                "milestones": self.milestones and tuple(steps(milestone) for milestone in self.milestones),
            }
        )

    def misfits(self, exact_steps: Callable[[Duration], float], num_steps: int, warmup: float) -> Sequence[Misfit]:
        places = {} if self.every is None else {"every": self.every}
        places |= {f"milestones.{index}": text for index, text in enumerate(self.milestones or ())}
        way_out = "make it shorter, or leave it out"
        return [
            Misfit(f"a drop at {text} never comes in a run of {counted(num_steps, 'step')}", None, field, way_out, True)
            for field, text in places.items()
            if exact_steps(parse_duration(text)) > num_steps
        ]
