"""Predictions of memory by tracing a step. The tracer is imported only when the compiler first needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan
    from declarative_train.planner.estimate.memory import MemoryScale
    from declarative_train.planner.estimate.model import ModelFacts
    from declarative_train.planner.estimate.tracing import Tracer, TraceResult


class LateTracer:
    """Tracer for predictions of memory. It imports the real tracer (`planner/footprint/forecast.py`) when it is first
    used."""

    def __init__(self) -> None:
        self._tracer: Tracer | None = None

    def memory(self, plan: Plan) -> TraceResult:
        return self._load().memory(plan)

    @property
    def spent_s(self) -> float:
        return 0.0 if self._tracer is None else self._tracer.spent_s

    def scale(self, plan: Plan, model: ModelFacts) -> MemoryScale | None:
        return self._load().scale(plan, model)

    def _load(self) -> Tracer:
        if self._tracer is None:
            from declarative_train.planner.footprint.forecast import Forecast

            self._tracer = Forecast()
        return self._tracer
