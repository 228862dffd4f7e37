"""Sharded data parallelism, the `shard` axis: torch's `fully_shard` distributes parameters, gradients and optimizer
state over the ranks, one unit (repeated block) after the other.

No rank ever has the whole model: it is built on the meta device, and each rank fills its shards. With the axis
`replicate` there are several copies of the sharded model (hybrid sharding). In a pipeline, parameters stay gathered
between forward and backward; schedules that split the backward would otherwise lose gradients.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

from declarative_train.components.layers.modules.expert_ranks import OwnExperts
from declarative_train.core.mesh import DATA_AXES
from declarative_train.engine.axes.gradient_sync import GradientSync
from declarative_train.engine.step.model_preparation import find_unit_modules
from declarative_train.engine.step.precision import shard_policy

if TYPE_CHECKING:
    from declarative_train.engine.collectives import MeshPosition
    from declarative_train.engine.step.model_preparation import BuiltModel
    from declarative_train.engine.step.step_runner import StepRunner
    from declarative_train.plan.layout import ShardingPlan
    from declarative_train.plan.plan import Plan


def shard(plan: Plan, built: BuiltModel, position: MeshPosition, runner: StepRunner) -> GradientSync:
    """Shard the model in place, and return its GradientSync. `built`: this rank's part of the model, on the meta
    device. `position`: this rank's position on the mesh. `runner`: runs forward and backward of a chunk (the rows of
    one forward)."""
    own_axes = tuple(axis for axis in DATA_AXES if plan.layout.has(axis) and axis != "expert")
    mesh = position.mesh[own_axes] if position.mesh_with_experts is None else position.mesh_with_experts
    sharding, policy = plan.layout.sharding, shard_policy(plan.training)
    assert sharding is not None
    # torch warns about units that return a view, since an in-place operation on it would lose a hook; here no layer and
    # no expression works in place
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    for modules, reshard in find_gather_groups(built.model, plan.layout.units, sharding):
        for experts in _find_experts(modules) if position.expert is not None else ():
            again = reshard is not False
            fully_shard(experts, mesh=position.mesh[own_axes], reshard_after_forward=again, mp_policy=policy)
        fully_shard(modules, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
    if position.expert is not None:  # experts outside of units
        for experts in _find_experts(built.roots):
            if not isinstance(experts, FSDPModule):
                fully_shard(experts, mesh=position.mesh[own_axes], reshard_after_forward=False, mp_policy=policy)
    roots: list[FSDPModule] = [
        fully_shard(module, mesh=mesh, reshard_after_forward=False, mp_policy=policy) for module in built.roots
    ]
    one_chunk = plan.layout.pipeline is not None or plan.batch.accumulation == 1

    def begin(num_rows: int | None, is_last: bool) -> None:
        for root in roots if not one_chunk else ():
            if sharding.keeps_gradients:
                root.set_requires_gradient_sync(is_last)
            else:
                root.set_requires_all_reduce(is_last)  # between the copies; shards are reduced after each chunk

    return GradientSync(call=built.model, finish=runner.finish, begin=begin)


def _find_experts(modules: Iterable[nn.Module]) -> Iterator[nn.Module]:
    for part in (part for module in modules for part in module.modules()):
        if isinstance(part, OwnExperts):
            yield part


def find_gather_groups(
    model: nn.Module, units: tuple[str, ...], sharding: ShardingPlan
) -> Iterator[tuple[list[nn.Module], bool | int]]:
    """Yield (modules, reshard) for each group of modules whose parameters fsdp gathers together. `reshard`: the
    argument `reshard_after_forward` of `fully_shard`. Each of `units`, the repeated blocks, is a group, unless several
    nodes use it. The last two groups are `sharding.first` and `sharding.last`."""
    for unit in units:
        if unit not in sharding.shared:
            yield from _make_group(model, (unit,), sharding.reshard)
    yield from _make_group(model, sharding.first, sharding.reshard)
    yield from _make_group(model, sharding.last, False)


def _make_group(
    model: nn.Module, names: tuple[str, ...], reshard: bool | int
) -> Iterator[tuple[list[nn.Module], bool | int]]:
    """Yield one pair (modules, `reshard`), for one call of `fully_shard`: the modules of the nodes `names` that have
    parameters on this rank. Yield nothing if there are none. `reshard`: its argument `reshard_after_forward`."""
    found = [module for module in find_unit_modules(model, names, rest=False) if any(True for _ in module.parameters())]
    if found:
        yield found, reshard
