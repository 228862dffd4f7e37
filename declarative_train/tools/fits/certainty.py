"""Uncertainty of the answer of `dtrain fits`: a range for the step time, and memory that the plan does not count."""

from __future__ import annotations

from typing import TYPE_CHECKING

from declarative_train.planner.estimate.runtime_memory import runtime_memory

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan

MEMORY_ERROR = 0.03  # relative error of predicted live bytes (docs/planner.md)


def step_interval(plan: Plan) -> tuple[float, float]:
    """Return two factors (low, high). In about 9 of 10 cases, the measured step time is between the predicted time
    multiplied by `low` and by `high`. Return (1, 1) if the plan has no estimate."""
    estimate = plan.estimate
    if estimate is None or estimate.step_s is None or estimate.low_s is None or estimate.high_s is None:
        return 1.0, 1.0
    return estimate.low_s / estimate.step_s, estimate.high_s / estimate.step_s


def runtime_bytes(plan: Plan) -> int:
    """Return the bytes that are used on a GPU in addition to the tensors of a step, such as CUDA's context and
    workspaces. Memory that is lost by fragmentation is not counted."""
    return sum(each.num_bytes for each in runtime_memory(plan))
