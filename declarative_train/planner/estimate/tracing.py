"""Interface of tracers: they measure the memory of a step on tensors without memory. The caller of `compile` passes
one, so that this package does not import the engine."""

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
    """Memory of a step, one row for each kind of device; no rows if the trace failed, with the reason in `why_not`."""

    rows: tuple[MemoryPlan, ...]
    why_not: str = ""


class Tracer(Protocol):
    """Interface of a tracer (implemented by `planner/footprint/forecast.py`)."""

    @property
    def spent_s(self) -> float:
        """CPU seconds of all traces so far, estimated from the number of calls, so that the same recipe gives the same
        plan on every machine."""

    def memory(self, plan: Plan) -> TraceResult: ...

    def scale(self, plan: Plan, model: ModelFacts) -> MemoryScale | None:
        """Return the scale of the memory estimates for this plan's model; None if the trace failed."""
