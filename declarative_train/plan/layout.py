"""The layout of a plan: which ranks there are, on which mesh, and what each of them holds of the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from declarative_train.core.mesh import DATA_AXES, Axis, Mesh, size_of


@dataclass(frozen=True, slots=True)
class RankPlan:
    """`coordinates` by mesh axis; `device` is the index on its node; `stages` the pipeline stages it holds."""

    rank: int
    node: int
    local_rank: int
    device: int
    coordinates: dict[str, int]
    stages: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WireBytes:
    """What a sample sends from a stage to the next, and the gradients that come back."""

    forward: int
    backward: int


@dataclass(frozen=True, slots=True)
class SharedParameter:
    """A parameter that several stages compute with, by a tie or because one calls a node of another again. Each of
    `stages` holds a copy, the first one counts it (norms); gradients are added up over them before anything else."""

    name: str
    stages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """`stages[i]` are the node paths of stage i, `wires[i]` what travels from stage i to i + 1, under the names of
    `graph.stage_graphs.stage_graphs(open_blocks(plan.graph, layout.units), stages)`, which makes the stages' graphs.

    `schedule` is the recipe's word (`1f1b`). `num_microbatches` are those of one optimizer step: accumulation steps
    are made microbatches. `grid[rank][time]` is an action ("0F1": stage 0, forward of microbatch 1) or "" when idle.
    `last_stage_rank` is the pipeline coordinate that holds the loss (0 in the V schedules). `num_parameters` and
    `wire_elements` (per sample) count elements, stage by stage. `wire_dtypes[i]` are those in which `wires[i]` travel,
    `wire_bytes[i]` what they weigh.
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
    """Which parameters are gathered together: each unit, the nodes `first` before them all, the nodes `last` after them
    all, and the rest, of which `shared` are nodes that several places use.

    `reshard`: what is gathered is freed between forward and backward (True), kept (False), or spread over so many
    neighbours (a number); `last` and the rest are always kept. `keeps_gradients`: over the chunks of a step each rank
    adds up whole gradients, to reduce them once; otherwise they are reduced after every chunk.
    """

    reshard: bool | int = True
    keeps_gradients: bool = True
    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LayoutPlan:
    """`mode` is the recipe's word, to be shown; what it means is the `mesh` of the ranks, and `num_copies`: of dp, the
    devices of the one process, `devices` being their indices (1 elsewhere).

    `device` is cuda, cpu, mps, or auto (decided where it runs: CUDA if the GPUs are there). `units` are the paths of
    the blocks: what is wrapped, checkpointed, compiled.
    """

    mode: Literal["single", "dp", "ddp", "fsdp", "pipeline"]
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

    def size(self, *axes: Axis) -> int:
        """The ranks along these axes of the mesh; 1 along one that it does not have."""
        return size_of(self.mesh, *axes)

    def has(self, axis: Axis) -> bool:
        """Also where one rank is all there is along it."""
        return any(each.name == axis for each in self.mesh)

    @property
    def is_one_process(self) -> bool:
        return not self.mesh

    @property
    def scatters(self) -> bool:
        """The one process splits each batch over copies of the model (dp)."""
        return bool(self.devices)

    @property
    def is_sharded(self) -> bool:
        return self.has("shard")

    @property
    def num_shards(self) -> int:
        return self.size("shard")

    @property
    def data_parallel_size(self) -> int:
        """Ranks, or copies of one process, that take different rows of a batch."""
        return self.size(*DATA_AXES) * self.num_copies

    @property
    def num_devices(self) -> int:
        return len(self.ranks) * self.num_copies

    @property
    def place_word(self) -> str:
        """What one of those is called that take different rows."""
        if self.scatters:
            return "device"
        return "rank" if self.mesh else "process"
