"""Metrics of a run. They are built from the plan, updated with each chunk (the rows of one forward), and read once per
evaluated set or logging step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from declarative_train.components.component import Collective, MetricInputs, MetricModule
from declarative_train.engine.step.objective import Values, tensor_specs

if TYPE_CHECKING:
    from declarative_train.plan.plan import MetricPlan, Plan, UnitPlan


class Metrics:
    """Metrics of a plan. `training`: for training steps. Then only metrics that are means over items are kept, because
    the others need all rows at once."""

    def __init__(self, plan: Plan, device: torch.device, *, training: bool) -> None:
        specs = tensor_specs(plan)
        self._units: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self._parts: list[tuple[MetricPlan, MetricModule]] = []
        for metric in plan.objective.metrics:
            from declarative_train.components.metrics import METRICS  # imported only if a plan has metrics

            component = METRICS.read(metric.component)
            if component.is_mean or not training:
                target = None if metric.target is None else specs[metric.target]
                mask = None if metric.mask is None else specs[metric.mask]
                edges = MetricInputs(specs[metric.input], target, mask, metric.class_dim, metric.ignore_index)
                module = component.build(edges, device)
                self._parts.append((metric, module))
                if (unit := metric.unit) is not None:  # created here, so that steps copy nothing from the host
                    multiply, add = (
                        torch.tensor(part, dtype=torch.float64, device=device).reshape(unit.shape)
                        for part in (unit.multiply, unit.add)
                    )
                    self._units[unit.field] = multiply, add

    def __bool__(self) -> bool:
        return bool(self._parts)

    def update(self, values: Values, row_weight: torch.Tensor | None) -> None:
        with torch.no_grad():
            for metric, module in self._parts:
                judged, target = values[metric.input], None if metric.target is None else values[metric.target]
                if metric.unit is not None and target is not None:
                    judged, target = self._in_unit(metric.unit, judged), self._in_unit(metric.unit, target)
                module.update(judged, target, None if metric.mask is None else values[metric.mask], row_weight)

    def _in_unit(self, unit: UnitPlan, values: torch.Tensor) -> torch.Tensor:
        """Convert `values` (B, *S) to the unit of the target's columns, for example by undoing a normalisation. The
        result is float64, so that a large offset costs no precision."""
        multiply, add = self._units[unit.field]
        return values.double() * multiply + add

    def take(self, ranks: Collective) -> dict[str, float]:
        """Return a dict from metric name to value, over all ranks and all updates since the last call, and reset the
        metrics. All ranks must call this; the host waits for the device."""
        if not self._parts:
            return {}
        computed = torch.stack([module.compute(ranks).double() for _, module in self._parts]).tolist()
        for _, module in self._parts:
            module.reset()
        return {metric.name: value for (metric, _), value in zip(self._parts, computed, strict=True)}
