"""Section `objective`: the losses to minimise, and the metrics to compute."""

from typing import Annotated, ClassVar

from pydantic import AfterValidator

from declarative_train.components.component import Loss, Metric
from declarative_train.recipe.sections.section import Section

_LARGEST = 3.4e38  # the largest float32; losses are added up in float32


def _check_weight(weight: float) -> float:
    if abs(weight) > _LARGEST:
        raise ValueError(f"`weight: {weight:g}` is more than float32 can hold: the loss would be infinite")
    return weight


class LossTerm(Section):
    """Term of the total loss. Its value is a mean over the global batch: the sum over the elements, divided by their
    number; with a mask, the weighted sum divided by the sum of the mask. Keys other than those below belong to its
    `type`."""

    inline: ClassVar[str | None] = "component"

    component: Loss
    input: str
    """The tensor whose values are judged: a node, or node.output."""
    target: str | None = None
    """The expected values: usually a field."""
    mask: str | None = None
    """Which elements count: a tensor of bool, or of a weight for each element. It may depend on fields only."""
    weight: Annotated[float, AfterValidator(_check_weight)] = 1.0
    """The factor of this term in the total loss."""


class MetricTerm(Section):
    """Metric. Its input, target and mask are those of the loss that `of` names, unless the metric sets them itself.
    Keys that are not listed below are settings of its `type`."""

    inline: ClassVar[str | None] = "component"

    component: Metric
    of: str | None = None
    """The loss term whose input, target and mask the metric uses. It may be left out if there is only one loss."""
    input: str | None = None
    """The tensor whose values are judged, instead of `of`."""
    target: str | None = None
    """The expected values, instead of those of `of`."""
    mask: str | None = None
    """Which elements count, instead of the mask of `of`."""


class ObjectiveSection(Section):
    """Losses to minimise, and metrics to watch."""

    short_forms: ClassVar[tuple[str, ...]] = ("loss",)

    losses: dict[str, LossTerm]
    """The terms of the loss by name; their weighted sum is minimised. `loss: {...}` is the short form for one."""
    metrics: dict[str, MetricTerm] = {}
    """Metrics by name; the name is the `type` if none is given. `[accuracy]` is the short form."""
