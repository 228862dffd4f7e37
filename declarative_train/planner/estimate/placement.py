"""Who holds what, as far as the estimates look at it: read from a plan's layout, or made for a candidate of `auto`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from declarative_train.components.pipeline_schedules import PIPELINE_SCHEDULES
from declarative_train.core.mesh import Mesh, size_of
from declarative_train.data.spec import BatchSpec
from declarative_train.plan.layout import LayoutPlan, ShardingPlan, WireBytes


@dataclass(frozen=True, slots=True)
class Group:
    """Devices that exchange something: every `stride`-th one, `size` of them."""

    size: int
    stride: int = 1


@dataclass(frozen=True, slots=True)
class Part:
    """What one kind of device holds: the nodes of its stages (of the whole model where there is but one), of each stage
    how many microbatches wait for their backward, and its number."""

    name: str
    stages: tuple[tuple[str, ...], ...]
    in_flight: tuple[float, ...]
    numbers: tuple[int, ...] = (0,)

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(name for stage in self.stages for name in stage)


@dataclass(frozen=True, slots=True)
class Pipes:
    """`wires[i]`: what goes from stage i to the next one, and back."""

    schedule: str
    num_ranks: int
    num_stages: int
    wires: tuple[WireBytes, ...]
    stride: int


@dataclass(frozen=True, slots=True)
class Placement:
    """`shards` spread each parameter, `replicas` average gradients: of devices that hold the same. `num_microbatches`
    are the forwards of a device in one optimizer step, `rows` the samples in each. `loss_part` has the loss; None: the
    last. `scatters`: one process sends the
    model to the others, and takes their gradients (dp)."""

    scatters: bool
    devices_per_node: int
    num_devices: int
    shards: Group
    replicas: Group
    rows: int
    num_microbatches: int
    parts: tuple[Part, ...]
    loss_part: int | None = None
    pipes: Pipes | None = None
    sharding: ShardingPlan | None = None

    @property
    def is_sharded(self) -> bool:
        return self.shards.size > 1


def placement_of(layout: LayoutPlan, batch: BatchSpec, nodes: Sequence[str]) -> Placement:
    """`nodes` of the whole model, opened down to its units."""
    shards, replicas = groups(layout.mesh, layout.num_copies)
    parts: tuple[Part, ...] = (Part("each device", (tuple(nodes),), (1,)),)
    pipes = None
    if layout.pipeline is not None:
        pipeline, num_ranks = layout.pipeline, layout.size("pipeline")
        held = {rank.coordinates["pipeline"]: rank.stages for rank in layout.ranks}
        parts = tuple(
            Part(
                f"pipeline rank {rank}",
                tuple(pipeline.stages[stage] for stage in stages),
                tuple(in_flight(pipeline.grid[rank], stage) for stage in stages),
                stages,
            )
            for rank, stages in sorted(held.items())
        )
        pipes = Pipes(pipeline.schedule, num_ranks, pipeline.num_stages, pipeline.wire_bytes, layout.data_parallel_size)
    return Placement(
        scatters=layout.scatters,
        devices_per_node=layout.gpus_per_node,
        num_devices=layout.num_devices,
        shards=shards,
        replicas=replicas,
        rows=batch.microbatch_size,
        num_microbatches=batch.accumulation * batch.num_microbatches,
        parts=parts,
        loss_part=None if layout.pipeline is None else layout.pipeline.last_stage_rank,
        pipes=pipes,
        sharding=layout.sharding,
    )


def groups(mesh: Mesh, num_copies: int = 1) -> tuple[Group, Group]:
    """Who shares out a parameter, and who holds the same: shards are neighbours."""
    shards = Group(size_of(mesh, "shard"))
    return shards, Group(size_of(mesh, "replicate") * num_copies, stride=shards.size)


def candidate_parts(
    stages: Sequence[tuple[str, ...]], held: Sequence[tuple[int, ...]], schedule: str, num_microbatches: int
) -> tuple[Part, ...]:
    """Of a pipeline that has no grid yet. `held[rank]` are the stages of a rank."""
    row = PIPELINE_SCHEDULES[schedule]
    return tuple(
        Part(
            f"pipeline rank {rank}",
            tuple(stages[stage] for stage in mine),
            (row.most_in_flight(rank, len(held), len(mine), num_microbatches) / len(mine),) * len(mine),
            mine,
        )
        for rank, mine in enumerate(held)
    )


def in_flight(row: Sequence[str], stage: int) -> int:
    """The most microbatches whose forward of a stage is done and whose backward is not."""
    most = now = 0
    for cell in row:
        for action in cell.split("+"):
            now += action.startswith(f"{stage}F")
            now -= action.startswith((f"{stage}B", f"{stage}W"))
            most = max(most, now)
    return most
