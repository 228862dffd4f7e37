"""Context parallelism, the `context` axis: ranks that read the same rows, each of which computes some of the positions.

Each rank takes its positions of the batch (`ForwardPath`), attention gathers the keys and values of all ranks, and the
gradients of all parameters are summed over the ranks, since each rank's gradient is that of its positions only."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from declarative_train.components.layers.modules.context import ContextRanks
from declarative_train.engine.axes.replicate import sum_gradients
from declarative_train.engine.collectives import local_part

if TYPE_CHECKING:
    from declarative_train.engine.axes.gradient_sync import GradientSync
    from declarative_train.engine.collectives import MeshPosition
    from declarative_train.engine.step.model_preparation import BuiltModel
    from declarative_train.engine.step.optimizers import Optimizers
    from declarative_train.plan.layout import ContextPlan


def ranks_of(context: ContextPlan, place: MeshPosition) -> ContextRanks:
    assert place.context is not None
    return ContextRanks(place.context, in_ring=context.keys == "ring")


def divide_positions(held: BuiltModel, ranks: ContextRanks) -> None:
    """Make the layers whose result depends on positions, such as attention, compute only the positions of this rank.
    `held`: this rank's part of the model. `ranks`: the ranks with the other positions of the same rows.
    """
    for part in held.model.modules():
        if hasattr(part, "context"):
            setattr(part, "context", ranks)  # noqa: B010  # which the type of a module does not know


def sync_positions(sharing: GradientSync, place: MeshPosition) -> GradientSync:
    """Return a GradientSync that does what `sharing` does, and also sums the gradients over the ranks with other
    positions of the same rows. `place`: this rank's position on the mesh.
    """
    group = place.context
    assert group is not None

    def reduce(optimizers: Optimizers) -> None:
        sharing.reduce(optimizers)
        sum_gradients([local_part(gradient) for gradient in optimizers.gradients()], group)

    return replace(sharing, reduce=reduce)
