"""Metric of a plugin: a mean of values, or one number computed from all rows of a set."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from declarative_train.components.component import Metric, MetricInputs, MetricModule, ShapeError
from declarative_train.components.losses.shape_checks import needs_mask_shape, needs_no_target, needs_target
from declarative_train.components.plugin_components import PluginComponent, describe_failure
from declarative_train.core.tensor_spec import TensorSpec

if TYPE_CHECKING:
    import torch


class PluginMetric(PluginComponent, Metric):
    """Metric of a plugin. The user's class has one of two methods. `forward` returns a value per sample or per
    element, and the metric is the mean of these values. `whole` gets all rows and returns the metric as one number."""

    higher_is_better: ClassVar[bool] = True

    @classmethod
    def settle(cls) -> None:
        cls.needs_target = cls.num_arguments == 2
        cls.is_mean = cls.method == "forward"

    def check(self, edges: MetricInputs) -> ShapeError | None:
        of_target = needs_target if self.needs_target else needs_no_target
        if (shape_error := of_target(self.type, edges.target)) is not None:
            return shape_error
        try:
            items = _item_shape(self, edges.input, edges.target)
        except Exception as problem:  # report any exception of the user's code
            return describe_failure(self.type, problem)
        return needs_mask_shape(self.type, edges.mask, items)

    def build(self, edges: MetricInputs, device: torch.device) -> MetricModule:
        from declarative_train.components.metrics.modules.means import MeanOfItems
        from declarative_train.components.metrics.modules.plugin import OfAllRows, PluginValues

        made = self.make()
        if self.is_mean:
            return MeanOfItems(PluginValues(made.forward), device)
        return OfAllRows(made.whole, edges, device)


def _item_shape(metric: PluginMetric, input: TensorSpec, target: TensorSpec | None) -> tuple[int, ...]:
    """Return the shape of the user's metric for one sample, by calling the user's code on generated samples; () for a
    metric of a whole set. Exceptions of the code are not caught."""
    from declarative_train.components.losses.modules.plugin import try_forward
    from declarative_train.components.metrics.modules.plugin import number_of

    made = metric.make()
    if metric.is_mean:
        return tuple(try_forward(made.forward, input, target).shape[1:])
    number_of(made.whole, input, target)
    return ()
