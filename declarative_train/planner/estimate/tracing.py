"""What the plan asks of those who can try a step: the runtime can, and the plan knows no runtime. So who compiles a
recipe hands it over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan
    from declarative_train.plan.predicted import MemoryPlan
    from declarative_train.planner.estimate.memory import Scale
    from declarative_train.planner.estimate.model import ModelFacts


@dataclass(frozen=True, slots=True)
class Traced:
    """A row for each kind of device; none where the step could not be tried, and then `why_not` says why."""

    rows: tuple[MemoryPlan, ...]
    why_not: str = ""


class Tracer(Protocol):
    """Tries steps on tensors without memory."""

    @property
    def spent_s(self) -> float:
        """What all that it was asked for takes, about, in seconds of a processor: by the number of calls, so that the
        same recipe gives the same plan on every machine."""

    def memory(self, plan: Plan) -> Traced: ...

    def scale(self, plan: Plan, model: ModelFacts) -> Scale | None:
        """What one plan tells of all others of its model; None where it cannot be tried."""
