"""Units under torch's `fully_shard`: gathered, used and let go on their own."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

from declarative_train.runtime.model import unit_modules

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def shard(
    model: nn.Module, units: tuple[str, ...], mesh: DeviceMesh, *, reshard_after_forward: bool | None = None
) -> None:
    """Every unit with parameters. What is left belongs to the root, for which the caller calls `shard_root`.

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


def shard_root(root: nn.Module, mesh: DeviceMesh, *, reshard_after_forward: bool | None = None) -> FSDPModule:
    """The module that holds the units, with all parameters that are in none of them."""
    sharded: FSDPModule = fully_shard(root, mesh=mesh, reshard_after_forward=reshard_after_forward)
    return sharded


def tied_parameters(model: nn.Module) -> set[int]:
    """Ids of parameters that stand under several names."""
    seen: set[int] = set()
    tied: set[int] = set()
    for _, parameter in model.named_parameters(remove_duplicate=False):
        (tied if id(parameter) in seen else seen).add(id(parameter))
    return tied
