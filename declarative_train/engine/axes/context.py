"""Context parallelism, the `context` axis: its ranks read the same rows, and each rank computes some of the positions.

Each rank takes its positions from the batch (`ForwardPath`). Attention gathers the keys and values of all ranks. The
gradient of a parameter on a rank covers only the rank's positions, so gradients are summed over the ranks."""

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


def ranks_of(context: ContextPlan, position: MeshPosition) -> ContextRanks:
    assert position.context is not None
    return ContextRanks(position.context, in_ring=context.keys == "ring")


def divide_positions(built: BuiltModel, ranks: ContextRanks) -> None:
    """Make the layers that combine positions, such as attention, compute only the positions of this rank. `built`: this
    rank's part of the model. `ranks`: the ranks of the axis `context`, which divide the positions of the same rows."""
    for part in built.model.modules():
        if hasattr(part, "context"):
            setattr(part, "context", ranks)  # noqa: B010  # which the type of a module does not know


def sync_positions(sync: GradientSync, position: MeshPosition) -> GradientSync:
    """Return a GradientSync like `sync`, whose `reduce` also sums the gradients over the ranks of the `context` axis.
    `position`: this rank's position on the mesh."""
    group = position.context
    assert group is not None

    def reduce(optimizers: Optimizers) -> None:
        sync.reduce(optimizers)
        sum_gradients([local_part(gradient) for gradient in optimizers.gradients()], group)

    return replace(sync, reduce=reduce)
