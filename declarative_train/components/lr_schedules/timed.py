"""Learning-rate schedules with durations as keys: exponential, step, and wsd, which decays at the end of the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, cos, pi, sqrt
from typing import Literal, Self

from pydantic import Field, model_validator

from declarative_train.components.component import LrSchedule, ShapeError
from declarative_train.components.durations import DurationText, in_steps, num_steps_of
from declarative_train.components.lr_schedules.factors import warmup_factor
from declarative_train.core.amounts import format_count
from declarative_train.core.duration import Duration, parse_duration


class Exponential(LrSchedule):
    """Learning rate that falls exponentially after the warm-up: a little in every step, and by the factor `gamma` over
    each duration `every`."""

    type: Literal["exponential"] = "exponential"
    gamma: float = Field(0.95, gt=0, le=1)
    """Factor for each `every`."""
    every: DurationText = "1 epoch"
    """Duration in which the learning rate falls by the factor `gamma`: `1 epoch`, `1000 steps`."""

    def factor(self, step: int, num_steps: int, num_warmup_steps: int) -> float:
        turns = max(0, step - num_warmup_steps) / num_steps_of(self.every)
        return warmup_factor(step, num_warmup_steps) * float(self.gamma**turns)

    def resolve(self, to_steps: Callable[[Duration], int]) -> Exponential:
        return self.model_copy(update={"every": in_steps(to_steps(parse_duration(self.every)))})


class StepLr(LrSchedule):
    """Learning rate that is multiplied by `gamma` at certain times: regularly (`every: 30 epochs`), or at listed times
    (`milestones: [30 epochs, 60 epochs]`).

    The times are counted from the start of the run, including its warm-up.
    """

    type: Literal["step"] = "step"
    gamma: float = Field(0.1, gt=0, le=1)
    """Factor of one drop."""
    every: DurationText | None = None
    """Duration between drops; not together with `milestones`."""
    milestones: tuple[DurationText, ...] | None = Field(None, min_length=1)
    """Times of the drops, from the start of the run."""

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.every is None) == (self.milestones is None):
            raise ValueError("`step` needs either `every` (such as `30 epochs`) or `milestones`, not both")
        return self

    def factor(self, step: int, num_steps: int, num_warmup_steps: int) -> float:
        if self.every is not None:
            drops = step // num_steps_of(self.every)
        else:
            drops = sum(step >= num_steps_of(milestone) for milestone in self.milestones or ())
        return warmup_factor(step, num_warmup_steps) * float(self.gamma**drops)

    def resolve(self, to_steps: Callable[[Duration], int]) -> StepLr:
        def steps(text: str) -> str:
            return in_steps(to_steps(parse_duration(text)))

        return self.model_copy(
            update={
                "every": self.every and steps(self.every),
                "milestones": self.milestones and tuple(steps(milestone) for milestone in self.milestones),
            }
        )

    def check_milestones(
        self, exact_steps: Callable[[Duration], float], num_steps: int, warmup: float
    ) -> Sequence[ShapeError]:
        places = {} if self.every is None else {"every": self.every}
        places |= {f"milestones.{index}": text for index, text in enumerate(self.milestones or ())}
        hint = "shorten it, or remove it"
        return [
            ShapeError(
                f"the drop at {text} is after the end of the run, {format_count(num_steps, 'step')}",
                None,
                field,
                hint,
                True,
            )
            for field, text in places.items()
            if exact_steps(parse_duration(text)) > num_steps
        ]


class Wsd(LrSchedule):
    """Warm-up, stable, decay: the learning rate is constant, then falls to `min_factor` over the last part of the run.

    Hu et al., "MiniCPM", section 4, https://arxiv.org/abs/2404.06395; the square-root shape: Hägele et al., "Scaling
    laws beyond fixed training durations", https://arxiv.org/abs/2405.18392.
    """

    type: Literal["wsd"] = "wsd"
    decay: DurationText = "20%"
    """Duration of the decay at the end of the run."""
    shape: Literal["linear", "cosine", "sqrt"] = "linear"
    """Shape of the decay; `sqrt` is 1 - sqrt(finished part of the decay)."""
    min_factor: float = Field(0.0, ge=0, le=1)
    """Factor at the end of the run."""

    def factor(self, step: int, num_steps: int, num_warmup_steps: int) -> float:
        decay = num_steps_of(self.decay)
        done = min(1.0, max(0.0, (step - (num_steps - decay)) / decay))
        left = {"linear": 1 - done, "cosine": (1 + cos(pi * done)) / 2, "sqrt": 1 - sqrt(done)}[self.shape]
        return warmup_factor(step, num_warmup_steps) * (self.min_factor + (1 - self.min_factor) * left)

    def resolve(self, to_steps: Callable[[Duration], int]) -> Wsd:
        return self.model_copy(update={"decay": in_steps(to_steps(parse_duration(self.decay)))})

    def check_milestones(
        self, exact_steps: Callable[[Duration], float], num_steps: int, warmup: float
    ) -> Sequence[ShapeError]:
        decay = exact_steps(parse_duration(self.decay))
        if warmup + decay <= num_steps:
            return ()
        left = num_steps - warmup
        run = f"a run of {format_count(num_steps, 'step')}"
        room = f"the rest of {run} after the warm-up" if warmup else run
        message = f"a decay of {format_count(ceil(decay), 'step')} is longer than {room}"
        hint = f"the longest is `{in_steps(int(left))}`, or `{int(100 * left / num_steps)}%`"
        return (ShapeError(message, field="decay", help=hint),)
