"""The `shard` axis: parameters, gradients and optimizer state shared out by torch's `fully_shard`, unit by unit.

The model is never whole on a rank: it was built on the meta device, and each rank fills its part after this. With a
`replicate` axis beside it there are whole copies of the sharded model: torch's hybrid sharding.

In a pipeline the parameters stay gathered between forward and backward: schedules that split backward look for the
nodes of whole parameters, and would lose gradients.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

from declarative_train.runtime.parallelise.sharing import Sharing
from declarative_train.runtime.step.model import unit_modules
from declarative_train.runtime.step.update import sharded_norm
from declarative_train.terms.mesh import DATA_AXES

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from declarative_train.plan.plan import Plan
    from declarative_train.runtime.collectives import Place
    from declarative_train.runtime.step.model import Held
    from declarative_train.runtime.step.step_runner import StepRunner


def shard(plan: Plan, held: Held, place: Place, runner: StepRunner) -> Sharing:
    mesh = place.mesh[tuple(axis for axis in DATA_AXES if plan.layout.has(axis))]
    in_pipeline = plan.layout.pipeline is not None
    reshard = False if in_pipeline else None  # None: torch's own choice, all but the root
    shard_units(held.model, plan.layout.units, mesh, reshard_after_forward=reshard)
    roots: list[FSDPModule] = [fully_shard(module, mesh=mesh, reshard_after_forward=reshard) for module in held.roots]
    one_chunk = in_pipeline or plan.batch.accumulation == 1

    def begin(num_rows: int | None, is_last: bool) -> None:
        if not one_chunk:
            for root in roots:
                root.set_requires_gradient_sync(is_last)

    return Sharing(call=held.model, finish=runner.finish, begin=begin, norm=sharded_norm)


def shard_units(
    model: nn.Module, units: tuple[str, ...], mesh: DeviceMesh, *, reshard_after_forward: bool | None
) -> None:
    """Every unit with parameters; what is left belongs to the root.

    A tied parameter is the root's: one that is used by two units cannot be let go by either.
    """
    # torch warns of units that return a view, since an in-place operation on it would lose a hook; no layer and no
    # expression works in place
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    tied = tied_parameters(model)
    for unit in unit_modules(model, units, rest=False):
        held = {id(parameter) for parameter in unit.parameters()}
        if held and not held & tied:
            fully_shard(unit, mesh=mesh, reshard_after_forward=reshard_after_forward)


def tied_parameters(model: nn.Module) -> set[int]:
    """Ids of parameters that stand under several names."""
    seen: set[int] = set()
    tied: set[int] = set()
    for _, parameter in model.named_parameters(remove_duplicate=False):
        (tied if id(parameter) in seen else seen).add(id(parameter))
    return tied
