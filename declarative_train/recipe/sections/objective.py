"""Section `objective`: the losses to minimise, and the metrics to compute."""

from typing import Annotated, ClassVar

from pydantic import AfterValidator

from declarative_train.components.component import Loss, Metric
from declarative_train.recipe.sections.section import Section

_LARGEST = 3.4e38  # that float32 holds, in which losses are added up


def _check_weight(weight: float) -> float:
    if abs(weight) > _LARGEST:
        raise ValueError(f"`weight: {weight:g}` is more than float32 can hold: the loss would be infinite")
    return weight


class LossTerm(Section):
    """Term of the loss: the sum over its valid elements, divided by their number, both over the global batch. Keys
    other than those below belong to its `type`.
    """

    inline: ClassVar[str | None] = "component"

    component: Loss
    input: str
    """The tensor to judge: a node, or node.output."""
    target: str | None = None
    """The expected values: usually a field."""
    mask: str | None = None
    """Elements that count: bool, or a weight for each; computed from fields alone."""
    weight: Annotated[float, AfterValidator(_check_weight)] = 1.0
    """The factor of this term in the total loss."""


class MetricTerm(Section):
    """Metric. It uses the input, target and mask of the loss that `of` names, or its own. Keys other than those below
    belong to its `type`.
    """

    inline: ClassVar[str | None] = "component"

    component: Metric
    of: str | None = None
    """The loss term whose input, target and mask it uses; with one loss it may be left out."""
    input: str | None = None
    """The tensor to judge, instead of `of`."""
    target: str | None = None
    """The expected values, instead of those of `of`."""
    mask: str | None = None
    """Elements that count."""


class ObjectiveSection(Section):
    """Losses to minimise, and metrics to watch."""

    short_forms: ClassVar[tuple[str, ...]] = ("loss",)

    losses: dict[str, LossTerm]
    """The terms of the loss by name; their weighted sum is minimised. `loss: {...}` is the short form for one."""
    metrics: dict[str, MetricTerm] = {}
    """Metrics by name; the name is the `type` if none is given. `[accuracy]` is the short form."""
