"""Sums and means over ranks that a plan applies to the gradient of each parameter, in the order in which they run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from declarative_train.core.mesh import Axis
from declarative_train.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class Reduction:
    """Reduction of a gradient: its sum or mean (`how`). `axis`: axis of the mesh over whose ranks the gradient is
    reduced; None: it is reduced over the replicas in one process (mode `dp`). `collective`: name of the operation."""

    how: Literal["sum", "mean"]
    axis: Axis | None
    collective: str

    def __str__(self) -> str:
        over = "the replicas of the process" if self.axis is None else f"`{self.axis}`"
        return f"{self.how} over {over} ({self.collective})"


def reductions_of(plan: Plan) -> dict[str, tuple[Reduction, ...]]:
    """Return a dict from each trained parameter to the reductions of its gradient over ranks, in the order of
    execution."""
    layout = plan.layout
    of_stages = {} if layout.pipeline is None else {item.name: item.stages for item in layout.pipeline.shared}
    summed = () if layout.cuts is None else layout.cuts.summed
    of_experts: frozenset[str] = frozenset() if layout.cuts is None else layout.cuts.of_experts
    by_data = []
    if layout.scatters:
        by_data.append(Reduction("sum", None, "backward of the copies"))
    if layout.has("shard"):
        by_data.append(Reduction("mean", "shard", "reduce-scatter"))
    if layout.has("expert"):
        by_data.append(Reduction("mean", "expert", "reduce-scatter" if layout.is_sharded else "all-reduce"))
    if layout.has("replicate"):
        by_data.append(Reduction("mean", "replicate", "all-reduce"))
    found = {}
    for item in plan.parameters:
        if item.frozen or item.tie is not None:
            continue
        mine: list[Reduction] = []
        if item.name in of_stages:
            stages = ", ".join(map(str, of_stages[item.name]))
            mine.append(Reduction("sum", "pipeline", f"send and receive between stages {stages}"))
        for each in by_data:
            is_own = each.axis == "expert" and item.name in of_experts  # an expert gets the rows of all ranks
            mine.append(Reduction("mean", "expert", "division") if is_own else each)
        if item.name in summed:
            mine.append(Reduction("sum", "tensor", "all-reduce"))
        if layout.has("context"):
            mine.append(Reduction("sum", "context", "all-reduce"))
        found[item.name] = tuple(mine)
    return found
