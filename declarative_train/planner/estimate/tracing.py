"""Interface of a tracer, which predicts the memory of a step by running the step on tensors without memory. `compile`
gets the tracer as an argument, so that the compiler does not import the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan
    from declarative_train.plan.predictions import MemoryPlan
    from declarative_train.planner.estimate.memory import MemoryScale
    from declarative_train.planner.estimate.model import ModelFacts


@dataclass(frozen=True, slots=True)
class TraceResult:
    """Predicted memory of a training step, found by tracing it. `rows`: one MemoryPlan for each kind of device; () if
    the trace failed. `why_not`: reason for which it failed."""

    rows: tuple[MemoryPlan, ...]
    why_not: str = ""


class Tracer(Protocol):
    """Interface of a tracer, which predicts the memory of a plan's step (implemented by
    `planner/footprint/forecast.py`)."""

    @property
    def spent_s(self) -> float:
        """CPU seconds of all traces so far. They are computed from the number of layer calls instead of measured, so
        that a recipe gives the same plan on every machine."""

    def memory(self, plan: Plan) -> TraceResult: ...

    def scale(self, plan: Plan, model: ModelFacts) -> MemoryScale | None:
        """Trace `plan`, and return the measured bytes of memory per element and per sample. Return None if the trace
        failed. `model`: facts about the model of `plan`."""
