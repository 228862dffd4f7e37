"""What tries a step for the compiler, imported when there is something to try."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from declarative_train.plan.estimate.memory import Scale
    from declarative_train.plan.estimate.model import ModelFacts
    from declarative_train.plan.plan import Plan
    from declarative_train.plan.predicted import MemoryPlan


class LateTracer:
    """A `Tracer`: `runtime/footprint/forecast.py`."""

    def memory(self, plan: Plan) -> tuple[MemoryPlan, ...]:
        from declarative_train.runtime.footprint.forecast import Forecast

        return Forecast().memory(plan)

    def scale(self, plan: Plan, model: ModelFacts) -> Scale | None:
        from declarative_train.runtime.footprint.forecast import Forecast

        return Forecast().scale(plan, model)
