"""Answer of `dtrain fits`: a plan, the changes and layouts that were tried, and figures computed from the step time."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from declarative_train.components.hardware.hardware import Hardware
from declarative_train.components.hardware.power import WATTS
from declarative_train.core.amounts import amount

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan
    from declarative_train.plan.predictions import CandidatePlan, EstimatePlan


@dataclass(frozen=True, slots=True)
class Change:
    """Change of a plan, with the memory and step time of the changed plan. `settings`: the change as options of `--set`
    or `dtrain fits`. `step_s`: None if unknown. `fits`: whether the changed plan fits."""

    settings: str
    memory_bytes: int
    step_s: float | None
    fits: bool


@dataclass(frozen=True)
class Fits:
    """Answer of `dtrain fits`.

    plan     plan of `target` in the layout that was planned first
    through  what computes a published model (a block of dtrain, or a library)
    changes  possible changes, the most useful first
    layouts  layouts that fit, the fastest first
    budget   number of tokens (or samples) to train on
    price    cost of one GPU for an hour; None if not given"""

    target: str
    plan: Plan
    through: str
    notes: tuple[str, ...]
    changes: tuple[Change, ...]
    layouts: tuple[CandidatePlan, ...]
    hardware: Hardware
    budget: float
    price: float | None
    text: str = field(default="", repr=False)
    """Text of `dtrain fits`."""
    data: dict[str, Any] = field(default_factory=dict, repr=False)
    """Object of `dtrain fits --json`."""

    @cached_property
    def memory_bytes(self) -> int:
        return peak_bytes(self.plan)

    @cached_property
    def usable_bytes(self) -> int:
        return usable_bytes(self.plan)

    @property
    def fits(self) -> bool:
        return self.memory_bytes <= self.usable_bytes

    @property
    def estimate(self) -> EstimatePlan:
        assert self.plan.estimate is not None
        return self.plan.estimate

    @property
    def num_gpus(self) -> int:
        return self.plan.layout.num_devices

    @cached_property
    def length(self) -> int | None:
        """Number of tokens in a sample. None for a model that does not read tokens."""
        return tokens_of(self.plan)

    @property
    def unit(self) -> str:
        return "sample" if self.length is None else "token"

    @property
    def per_second(self) -> float | None:
        """Tokens (or samples) per second of all GPUs together, or None if unknown."""
        step_s = self.estimate.step_s
        return None if step_s is None else self.plan.batch.global_batch_size * (self.length or 1) / step_s

    @property
    def hours(self) -> float | None:
        """Hours of training for the budget, or None if unknown."""
        return None if self.per_second is None else self.budget / self.per_second / 3600

    @property
    def energy_kwh(self) -> float | None:
        """Energy of the GPUs in kWh, at their full power, or None if unknown."""
        watts = WATTS.get(self.hardware.name)
        return None if self.hours is None or watts is None else watts * self.num_gpus * self.hours / 1000

    @property
    def cost(self) -> float | None:
        return None if self.hours is None or self.price is None else self.price * self.num_gpus * self.hours

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        verdict = "fits" if self.fits else "does not fit"
        return f"<Fits {self.target}: {verdict}, {amount(self.memory_bytes, 'B')} on each {self.hardware.name}>"


def usable_bytes(plan: Plan) -> int:
    """Return how many bytes of a GPU's memory a plan may use: all except a reserve. The plan must have an estimate for
    a GPU."""
    from declarative_train.planner.auto.target import RESERVE

    assert plan.estimate is not None
    assert plan.estimate.device_memory_bytes is not None
    return int(plan.estimate.device_memory_bytes * (1 - RESERVE))


def may_fit(plan: Plan) -> bool:
    """Return whether the plan may fit: its estimated memory fits or is only a little too large, because estimates can
    be too high."""
    from declarative_train.planner.auto.choose import TOO_HIGH

    return peak_bytes(plan) <= TOO_HIGH * usable_bytes(plan)


def peak_bytes(plan: Plan) -> int:
    """Return the memory in bytes that a step needs on the device that needs most."""
    return max(each.of_step for each in plan.memory)


def tokens_of(plan: Plan) -> int | None:
    """Return the number of tokens of a sample: the length of the model's first input of token ids. Return None if the
    model has no such input."""
    specs = plan.graph.inputs.values()
    return next((spec.shape[0] for spec in specs if spec.num_values is not None and len(spec.shape) == 1), None)
