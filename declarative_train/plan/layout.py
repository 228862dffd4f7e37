"""Layout of a plan: the ranks, their mesh, and the part of the model that each rank holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from declarative_train.core.mesh import DATA_AXES, Axis, Mesh, size_of
from declarative_train.graph.cuts import Cuts


@dataclass(frozen=True, slots=True)
class RankPlan:
    """Rank of a run: its `coordinates` by mesh axis, the index of its `device` on the node, and the pipeline `stages`
    on it."""

    rank: int
    node: int
    local_rank: int
    device: int
    coordinates: dict[str, int]
    stages: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WireBytes:
    """Bytes per sample that one stage sends to the next, and those of the gradients that come back."""

    forward: int
    backward: int


@dataclass(frozen=True, slots=True)
class SharedParameter:
    """Parameter that several stages use, because of a tie or because a stage calls a node of another one. Each of
    `stages` holds a copy; the first one counts it in norms. Gradients are summed over the copies before anything else.
    """

    name: str
    stages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """Stages and schedule of a pipeline.

    `stages[i]` are the node paths of stage i, `wires[i]` the values sent from stage i to i + 1, under the names of
    `graph.stage_graphs.stage_graphs(open_blocks(plan.graph, layout.units), stages)`, which builds the stages' graphs.

    `schedule` is the recipe's word (`1f1b`). `num_microbatches` are those of one optimizer step, accumulation steps
    included. `grid[rank][time]` is an action ("0F1": stage 0, forward of microbatch 1) or "" when idle.
    `last_stage_rank` is the pipeline coordinate that holds the loss (0 in the V schedules). `num_parameters` and
    `wire_elements` (per sample) count elements, stage by stage. `wire_dtypes[i]` and `wire_bytes[i]` are the dtypes and
    bytes of `wires[i]`.
    """

    schedule: str
    num_stages: int
    num_microbatches: int
    stages: tuple[tuple[str, ...], ...]
    wires: tuple[tuple[str, ...], ...]
    grid: tuple[tuple[str, ...], ...]
    last_stage_rank: int
    num_parameters: tuple[int, ...]
    wire_elements: tuple[int, ...] = ()
    wire_dtypes: tuple[tuple[str, ...], ...] = ()
    wire_bytes: tuple[WireBytes, ...] = ()
    shared: tuple[SharedParameter, ...] = ()


@dataclass(frozen=True, slots=True)
class ShardingPlan:
    """Groups of parameters that fsdp gathers together: each unit, the nodes `first` before all units, the nodes `last`
    after them, and the rest; `shared` are nodes of the rest that several places use.

    `reshard`: gathered parameters are freed between forward and backward (True), kept (False), or sharded over that
    many neighbours (a number); `last` and the rest are always kept. `keeps_gradients`: each rank sums whole gradients
    over the chunks of a step and reduces them once; otherwise they are reduced after every chunk.
    """

    reshard: bool | int = True
    keeps_gradients: bool = True
    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LayoutPlan:
    """Ranks and devices of a run.

    `mode` is the recipe's word, for display; the `mesh` of the ranks decides. For dp, `num_copies` is the number of
    devices of the one process and `devices` are their indices; otherwise 1 and none. `device` is cuda, cpu, mps, or
    auto (decided at run time: CUDA if enough GPUs exist). `units` are the paths of the blocks that are wrapped,
    checkpointed and compiled. `cuts`: how the ranks of the `tensor` axis divide the model.
    """

    mode: Literal["single", "dp", "ddp", "fsdp", "pipeline", "tensor"]
    device: Literal["auto", "cuda", "cpu", "mps"]
    num_nodes: int
    gpus_per_node: int
    mesh: Mesh
    ranks: tuple[RankPlan, ...]
    units: tuple[str, ...]
    num_copies: int = 1
    devices: tuple[int, ...] = ()
    hardware: str | None = None
    pipeline: PipelinePlan | None = None
    sharding: ShardingPlan | None = None
    cuts: Cuts | None = None

    def size(self, *axes: Axis) -> int:
        """Return the number of ranks along these mesh axes; an axis that the mesh does not have counts as 1."""
        return size_of(self.mesh, *axes)

    def has(self, axis: Axis) -> bool:
        """Return whether the mesh has an axis, even one of size 1."""
        return any(each.name == axis for each in self.mesh)

    @property
    def is_one_process(self) -> bool:
        return not self.mesh

    @property
    def scatters(self) -> bool:
        """True if one process splits each batch over copies of the model (dp)."""
        return bool(self.devices)

    @property
    def is_sharded(self) -> bool:
        return self.has("shard")

    @property
    def num_shards(self) -> int:
        return self.size("shard")

    @property
    def data_parallel_size(self) -> int:
        """Number of ranks, or of copies in one process, that take different rows of a batch."""
        return self.size(*DATA_AXES) * self.num_copies

    @property
    def num_devices(self) -> int:
        return len(self.ranks) * self.num_copies

    @property
    def place_word(self) -> str:
        """Name for one of these ranks or copies in texts for users."""
        if self.scatters:
            return "device"
        return "rank" if self.mesh else "process"
