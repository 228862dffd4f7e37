"""Layout of a run: the ranks, their mesh, and the stages, shards and positions that each rank computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, overload

from declarative_train.core.mesh import DATA_AXES, Axis, Mesh, coordinates, size_of
from declarative_train.graph.cuts import Cuts


@dataclass(frozen=True, slots=True)
class RankPlan:
    """Rank of a run. `local_rank`: index of the rank on its node. `device`: index of its device on the node.
    `coordinates`: its index along each axis of the mesh. `stages`: indices of the pipeline stages that it computes."""

    rank: int
    node: int
    local_rank: int
    device: int
    coordinates: dict[str, int]
    stages: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WireBytes:
    """Bytes per sample that two neighbouring stages of a pipeline send to each other: `forward` to the next stage,
    `backward` (gradients) to the previous one."""

    forward: int
    backward: int


@dataclass(frozen=True, slots=True)
class SharedParameter:
    """Parameter that several pipeline stages use, because it is tied, or because a node in one stage calls a node of
    another stage again (`reuse`).

    Each of `stages` has a copy of it. Gradients are summed over the copies before they are used. In a norm of all
    gradients, only the copy of the first stage counts.
    """

    name: str
    stages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """Stages and schedule of a pipeline.

    schedule           its name in the recipe (`1f1b`)
    num_microbatches   microbatches per optimizer step, over all accumulation steps
    stages[i]          paths of the nodes of stage i
    wires[i]           names of the values that stage i sends to stage i + 1
    wire_elements, wire_dtypes, wire_bytes   elements, dtypes and bytes per sample of these values
    grid[rank][time]   action ("0F1": stage 0, forward of microbatch 1), or "" if the rank is idle
    last_stage_rank    pipeline coordinate of the rank that computes the loss (0 in the V schedules)
    rank_stages[rank]  indices of the stages of the rank with this pipeline coordinate
    num_parameters     number of parameter elements of each stage
    output_shapes[bucket][i]   shapes of the outputs of stage i for one sample; without length buckets, one bucket
    """

    schedule: str
    num_stages: int
    num_microbatches: int
    stages: tuple[tuple[str, ...], ...]
    wires: tuple[tuple[str, ...], ...]
    grid: tuple[tuple[str, ...], ...]
    last_stage_rank: int
    rank_stages: tuple[tuple[int, ...], ...]
    num_parameters: tuple[int, ...]
    wire_elements: tuple[int, ...] = ()
    wire_dtypes: tuple[tuple[str, ...], ...] = ()
    wire_bytes: tuple[WireBytes, ...] = ()
    shared: tuple[SharedParameter, ...] = ()
    output_shapes: tuple[tuple[tuple[tuple[int, ...], ...], ...], ...] = ()


@dataclass(frozen=True, slots=True)
class ShardingPlan:
    """Groups of nodes whose parameters fsdp gathers together. Each unit (a block) is a group.

    first            nodes before the first unit: one more group
    last             nodes after the last unit: one more group, which is not freed after the forward
    shared           nodes whose parameters several nodes use; they are in no group, and are never freed
    reshard          whether gathered parameters are freed after the forward; n: they stay divided over n ranks
    keeps_gradients  whole gradients are added up over microbatches and reduced once per step, not after each one
    """

    reshard: bool | int = True
    keeps_gradients: bool = True
    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ContextPlan:
    """Division of sequences over the ranks of the axis `context`.

    `length`: positions of a whole sequence, or of the longest one with length buckets. `names`: tensors of the batch
    that are divided, so that each rank has the positions that it computes. `keys`: how attention gets the keys of the
    other ranks: all at once (`gathered`), or from rank to rank around a ring.
    """

    length: int
    names: tuple[str, ...]
    keys: Literal["gathered", "ring"] = "gathered"


@dataclass(frozen=True, slots=True)
class LayoutPlan:
    """Ranks and devices of a run.

    mode           the recipe's word for the parallelism, for display only; code reads the axes of `mesh`
    device         cuda, cpu, mps, or auto: at run time cuda if there are enough GPUs
    units          paths of the blocks that are sharded, recomputed and compiled as a whole
    rank_devices   device index of each rank of a node, the same on every node
    num_copies     model copies in the single process of mode dp; 1 in other modes
    devices        device index of each model copy in mode dp; () in other modes
    min_nodes      number of nodes for which the run waits; for fewer than `num_nodes` the recipe is compiled again
    max_restarts   maximum number of restarts in a row without a new checkpoint
    """

    mode: Literal["single", "dp", "ddp", "fsdp", "pipeline", "expert", "context", "tensor"]
    device: Literal["auto", "cuda", "cpu", "mps"]
    num_nodes: int
    gpus_per_node: int
    mesh: Mesh
    rank_devices: tuple[int, ...]
    units: tuple[str, ...]
    num_copies: int = 1
    devices: tuple[int, ...] = ()
    hardware: str | None = None
    pipeline: PipelinePlan | None = None
    sharding: ShardingPlan | None = None
    cuts: Cuts | None = None
    context: ContextPlan | None = None
    min_nodes: int | None = None
    max_restarts: int = 0

    @property
    def ranks(self) -> RankTable:
        return RankTable(self)

    def size(self, *axes: Axis) -> int:
        """Return the product of the sizes of these axes of the mesh. An axis that the mesh does not have counts as
        1."""
        return size_of(self.mesh, *axes)

    def has(self, axis: Axis) -> bool:
        """Return whether the mesh has an axis, even one of size 1."""
        return any(each.name == axis for each in self.mesh)

    def shape_on_rank(self, shape: tuple[int, ...], longest: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """Return the shape on each rank of a tensor of one sample. `shape`: its undivided shape. `longest`: its
        undivided shape in the longest length bucket; None without buckets.

        The axis `context` divides the first dimension if it is the sequence: its length (in `longest`, if given) is
        `ContextPlan.length`. Other axes do not change the shape.
        """
        if self.context is None or (shape if longest is None else longest)[:1] != (self.context.length,):
            return shape
        return (shape[0] // self.size("context"), *shape[1:])

    @property
    def is_one_process(self) -> bool:
        return not self.mesh

    @property
    def scatters(self) -> bool:
        """True in mode dp, where one process splits each batch over copies of the model on several devices."""
        return bool(self.devices)

    @property
    def is_sharded(self) -> bool:
        return self.has("shard")

    @property
    def num_shards(self) -> int:
        return self.size("shard")

    @property
    def data_parallel_size(self) -> int:
        """Number of parts into which the rows of a batch are divided. Different ranks or, in mode dp, different copies
        of the model compute the parts."""
        return self.size(*DATA_AXES) * self.num_copies

    @property
    def num_devices(self) -> int:
        return len(self.ranks) * self.num_copies

    @property
    def place_word(self) -> str:
        """Noun for one participant of the layout, for messages: "device" in mode dp, "process" without a mesh,
        otherwise "rank"."""
        if self.scatters:
            return "device"
        return "rank" if self.mesh else "process"


@dataclass(frozen=True, slots=True)
class RankTable(Sequence[RankPlan]):
    """Ranks of a layout as a sequence. A RankPlan is computed when it is read, so that a plan for thousands of ranks
    stays small."""

    layout: LayoutPlan

    def __len__(self) -> int:
        return prod(axis.size for axis in self.layout.mesh)

    @overload
    def __getitem__(self, rank: int) -> RankPlan: ...
    @overload
    def __getitem__(self, rank: slice) -> tuple[RankPlan, ...]: ...

    def __getitem__(self, rank: int | slice) -> RankPlan | tuple[RankPlan, ...]:
        if isinstance(rank, slice):
            return tuple(self[each] for each in range(len(self))[rank])
        layout, number = self.layout, range(len(self))[rank]
        node, local_rank = divmod(number, layout.gpus_per_node)
        place = coordinates(number, layout.mesh)
        pipeline = layout.pipeline
        stages = () if pipeline is None else pipeline.rank_stages[place["pipeline"]]
        return RankPlan(number, node, local_rank, layout.rank_devices[local_rank], place, stages)
