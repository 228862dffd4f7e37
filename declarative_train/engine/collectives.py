"""Communication between ranks: the position of this rank on the plan's mesh, sums over ranks, and rows gathered from
ranks."""

from __future__ import annotations

from datetime import timedelta
from functools import reduce
from typing import TYPE_CHECKING

import torch
from torch import distributed, nn

from declarative_train.components.component import Collective
from declarative_train.core.mesh import DATA_AXES, Axis
from declarative_train.engine.failures import limit_s

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from declarative_train.plan.layout import LayoutPlan

_DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.bfloat16, torch.float16, torch.float32, torch.float64),
)


_NOT_DATA: tuple[Axis, ...] = ("pipeline", "context", "tensor")
# renamed in torch 2.13
_gather_single = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
_reduce_scatter_single = getattr(distributed, "reduce_scatter_single", None) or distributed.reduce_scatter_tensor


class Alone(Collective):
    """Collective of a single process, in which sums and gathers return their input."""

    rank, size = 0, 1
    group: ProcessGroup | None = None

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def sum_(self, tensor: torch.Tensor) -> None:
        """Do nothing, because the sum over one process is the tensor itself."""

    def begin_sum_(self, tensor: torch.Tensor) -> Callable[[], None]:
        return lambda: None

    def concatenate(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


class Ranks(Collective):
    """Collective communication between the ranks of a torch process group."""

    def __init__(self, group: ProcessGroup | None = None) -> None:
        self.group = group
        self.rank = distributed.get_rank(group)
        self.size = distributed.get_world_size(group)

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        total = tensor.clone()
        self.sum_(total)
        return total

    def sum_(self, tensor: torch.Tensor) -> None:
        """Replace the tensor by its sum over the ranks, in place."""
        distributed.all_reduce(tensor, group=self.group)

    def begin_sum_(self, tensor: torch.Tensor) -> Callable[[], None]:
        """Start to replace the tensor by its sum over the ranks, and return a function that waits for the result. Call
        the returned function before you read the tensor; with several sums, call the functions in the order in which
        the sums were started. On a GPU the returned function makes the stream wait, not the host."""
        work = distributed.all_reduce(tensor, group=self.group, async_op=True)
        assert work is not None

        def end() -> None:
            work.wait()

        return end

    def max(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the elementwise maximum of a tensor over the ranks."""
        greatest = tensor.clone()
        distributed.all_reduce(greatest, distributed.ReduceOp.MAX, group=self.group)
        return greatest

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensors of all ranks, joined along the last dimension in the order of the ranks. They must have
        equal shapes."""
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        distributed.all_gather(parts, tensor, group=self.group)
        return torch.cat(parts, -1)

    def gather_tokens(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensors (B, T, ...) of all ranks, joined along T in the order of the ranks. They must have equal
        shapes."""
        parts = tensor.new_empty((self.size * len(tensor), *tensor.shape[1:]))
        _gather_single(parts, tensor.contiguous(), group=self.group)
        return parts.view(self.size, *tensor.shape).movedim(0, 1).flatten(1, 2)

    def sum_tokens(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a tensor (B, T, ...) over the ranks, and return only this rank's part of the sum: T is divided into equal
        slices, one per rank (a reduce-scatter)."""
        B, T, *rest = tensor.shape
        parts = tensor.reshape(B, self.size, T // self.size, *rest).movedim(1, 0).contiguous()
        found = torch.empty_like(parts[0])
        _reduce_scatter_single(found, parts.flatten(0, 1), group=self.group)
        return found

    def exchange(self, tensor: torch.Tensor, sent: Sequence[int], received: Sequence[int]) -> torch.Tensor:
        """Send rows of `tensor` to each rank, and return the rows that the ranks send to this one, in the order of the
        ranks (an all-to-all). `sent`: number of rows for each rank. `received`: number of rows from each rank."""
        found = tensor.new_empty(sum(received), *tensor.shape[1:])
        distributed.all_to_all_single(found, tensor.contiguous(), list(received), list(sent), group=self.group)
        return found

    def concatenate(self, tensor: torch.Tensor) -> torch.Tensor:
        sizes, dtype = self._sizes_and_dtype(tensor)
        tensor, longest = tensor.to(dtype), max(sizes)
        wire = tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor
        padded = wire.new_zeros((longest, *tensor.shape[1:]))
        padded[: len(tensor)] = wire
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        distributed.all_gather(parts, padded, group=self.group)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)]).to(tensor.dtype)

    def _sizes_and_dtype(self, tensor: torch.Tensor) -> tuple[list[int], torch.dtype]:
        """Return the number of rows that `tensor` has on each rank, and a dtype that can represent the values of all
        ranks."""
        mine = torch.tensor([len(tensor), _DTYPES.index(tensor.dtype)], dtype=torch.int64, device=tensor.device)
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        distributed.all_gather(parts, mine, group=self.group)
        found = torch.stack(parts).tolist()
        dtypes = [_DTYPES[number] for size, number in found if size]
        return [size for size, _ in found], reduce(torch.promote_types, dtypes) if dtypes else tensor.dtype


class MeshPosition:
    """Position of this rank on the plan's mesh, and the groups of ranks to which it belongs. A group is None if the
    mesh does not have its axis.

    `world`           all ranks
    `data`            the ranks that read other rows but are otherwise like this one, in the order of the rows
    `dp_rank`         index of this rank in `data`
    `data_ranks`      the ranks of `data`, as numbers in `world`
    `pipeline`        the ranks with the other stages of this pipeline
    `pipeline_index`  index of this rank in `pipeline`; 0 without this axis
    `expert`          the ranks with the other experts
    `same_experts`    the ranks with copies of this rank's experts
    `context`         the ranks with other positions of the same rows
    `tensor`          the ranks with the other parts of each divided layer
    `items`           the ranks over which valid items are counted
    `sums`            the ranks over which losses, metrics and counts are summed
    `mesh`            torch's mesh, only for layouts in which torch needs one
    `is_traced`       the step runs on tensors without memory, which DistributedDataParallel does not support
    """

    def __init__(self, layout: LayoutPlan, device: torch.device, *, is_traced: bool = False) -> None:
        self.is_traced = is_traced
        self._mesh: DeviceMesh | None = None
        self.pipeline: Ranks | None = None
        self.pipeline_index = 0
        self.context: Ranks | None = None
        self.tensor: Ranks | None = None
        self.expert: Ranks | None = None
        self.mesh_with_experts: DeviceMesh | None = None
        self.same_experts: Alone | Ranks = Alone()
        self.world: Alone | Ranks = Alone()
        self.sums: Alone | Ranks = self.world
        self.items: Alone | Ranks = self.world
        self.data: Alone | Ranks = self.world
        self.data_ranks: Sequence[int] = (0,)
        if layout.is_one_process:
            self.dp_rank = 0
            return
        self.world = self.data = self.items = self.sums = Ranks()
        self.data_ranks = range(self.world.size)
        if layout.is_sharded or layout.has("expert") or any(layout.has(axis) for axis in _NOT_DATA):
            self._mesh = _make_mesh(layout, device)
        if layout.has("pipeline"):
            self.pipeline = Ranks(self.mesh.get_group("pipeline"))
            self.pipeline_index = self.pipeline.rank
        if layout.has("expert"):
            self.expert = Ranks(self.mesh.get_group("expert"))
            self.mesh_with_experts = self._join_experts(layout) if layout.is_sharded else None
            if layout.has("replicate"):
                self.same_experts = Ranks(self.mesh.get_group("replicate"))
        if layout.has("tensor"):
            self.tensor = Ranks(self.mesh.get_group("tensor"))
            others = self.mesh.mesh.reshape(-1, self.tensor.size)[:, self.tensor.rank].tolist()
            self.sums = Alone() if len(others) == 1 else Ranks(make_group(others))
        if layout.has("context"):
            self.context = Ranks(self.mesh.get_group("context"))
        if any(layout.has(axis) for axis in _NOT_DATA):
            self.data, self.data_ranks = self._join(layout, DATA_AXES)
            self.items = self._join(layout, (*DATA_AXES, "context"))[0] if layout.has("context") else self.data
        self.dp_rank = self.data.rank

    @property
    def mesh(self) -> DeviceMesh:
        assert self._mesh is not None, "a mesh of replicas alone needs no torch mesh"
        return self._mesh

    def _join_experts(self, layout: LayoutPlan) -> DeviceMesh:
        """Return a mesh in which the axes `shard` and `expert` are joined to one axis, called `shard`. All parameters
        except those of experts are sharded over this axis. The axis `replicate` stays, if the layout has it."""
        from torch.distributed.device_mesh import DeviceMesh

        axes = tuple(axis for axis in DATA_AXES if layout.has(axis))
        ranks = self.mesh[axes].mesh.reshape(layout.size("replicate"), -1)
        (row, column), device = (ranks == distributed.get_rank()).nonzero()[0].tolist(), self.mesh.device_type
        shards = make_group(ranks[row].tolist())
        if not layout.has("replicate"):
            return DeviceMesh.from_group(shards, device, mesh_dim_names=("shard",))
        copies = make_group(ranks[:, column].tolist())
        return DeviceMesh.from_group([copies, shards], device, ranks, mesh_dim_names=("replicate", "shard"))

    def _join(self, layout: LayoutPlan, along: Sequence[Axis]) -> tuple[Alone | Ranks, Sequence[int]]:
        """Return a collective, and the global numbers of its ranks. The ranks are this one and all whose mesh
        coordinates differ from its own only on the axes `along`. Axes that the mesh does not have are ignored. If no
        axis is left, this rank is alone."""
        axes = tuple(axis for axis in along if layout.has(axis))
        if not axes:
            return Alone(), (self.world.rank,)
        ranks = self.mesh[axes].mesh.flatten().tolist()
        return Ranks(self.mesh.get_group(axes[0]) if len(axes) == 1 else make_group(ranks)), ranks


def make_group(ranks: Sequence[int]) -> ProcessGroup:
    """Return a process group of the given ranks, all of which must call this. Its time limit is `DTRAIN_TIMEOUT_S`
    (torch's default is half an hour)."""
    limit = timedelta(seconds=limit_s("DTRAIN_TIMEOUT_S"))
    made: ProcessGroup = distributed.new_group(list(ranks), timeout=limit, use_local_synchronization=True)
    return made


def _make_mesh(layout: LayoutPlan, device: torch.device) -> DeviceMesh:
    """Return torch's mesh for a layout. Its process groups are created here, because `init_device_mesh` has no argument
    for a time limit."""
    from torch.distributed.device_mesh import DeviceMesh

    sizes, names = zip(*((axis.size, axis.name) for axis in layout.mesh), strict=True)
    if len(sizes) == 1:
        assert distributed.group.WORLD is not None
        return DeviceMesh.from_group(distributed.group.WORLD, device.type, mesh_dim_names=names)
    ranks = torch.arange(distributed.get_world_size()).reshape(sizes)
    position = (ranks == distributed.get_rank()).nonzero()[0].tolist()
    groups = []
    for axis in range(len(sizes)):
        along = tuple(slice(None) if each == axis else at for each, at in enumerate(position))
        groups.append(make_group(ranks[along].tolist()))
    return DeviceMesh.from_group(groups, device.type, ranks, mesh_dim_names=names)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's shard of a DTensor. Any other tensor is returned unchanged."""
    found: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found


def finish_together(device: torch.device) -> None:
    """Wait until all ranks have finished their GPU work. Otherwise a rank could exit while another GPU still reads data
    from it. The ranks wait through gloo, which has delivered all its data when it returns."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        distributed.all_reduce(torch.zeros(1))


@torch.no_grad()
def average_buffers(module: nn.Module, ranks: Alone | Ranks) -> None:
    """Average the floating-point buffers of a module over the ranks, with one message. They are running statistics,
    which each rank has updated with its own rows. (Integer buffers, such as counters, are equal on all ranks.)"""
    buffers = [buffer for buffer in module.buffers() if buffer.is_floating_point()]
    if not buffers:
        return
    total = ranks.sum(torch.cat([buffer.reshape(-1).double() for buffer in buffers])) / ranks.size
    for buffer, part in zip(buffers, torch.split(total, [buffer.numel() for buffer in buffers]), strict=True):
        buffer.copy_(part.view_as(buffer))
