"""Who holds what, as far as the estimates look at it: read from a plan's layout, or made for a candidate of `auto`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from declarative_train.data.spec import BatchSpec
from declarative_train.plan.pipeline_schedules.estimate import most_in_flight
from declarative_train.plan.plan import LayoutPlan


@dataclass(frozen=True, slots=True)
class Group:
    """Devices that exchange something: every `stride`-th one, `size` of them."""

    size: int
    stride: int = 1


@dataclass(frozen=True, slots=True)
class Part:
    """What one kind of device holds: the nodes of its stages (of the whole model where there is but one), and of each
    stage how many microbatches wait for their backward."""

    name: str
    stages: tuple[tuple[str, ...], ...]
    in_flight: tuple[float, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(name for stage in self.stages for name in stage)


@dataclass(frozen=True, slots=True)
class Pipes:
    """`wires[i]` elements per sample go from stage i to the next one."""

    schedule: str
    num_ranks: int
    num_stages: int
    wires: tuple[int, ...]
    stride: int


@dataclass(frozen=True, slots=True)
class Placement:
    """`shards` spread each parameter, `replicas` average gradients: of devices that hold the same. `num_microbatches`
    are the forwards of a device in one optimizer step, `rows` the samples in each."""

    mode: Literal["single", "dp", "ddp", "fsdp", "pipeline"]
    devices_per_node: int
    num_devices: int
    shards: Group
    replicas: Group
    rows: int
    num_microbatches: int
    parts: tuple[Part, ...]
    pipes: Pipes | None = None

    @property
    def is_sharded(self) -> bool:
        return self.shards.size > 1


def placement_of(layout: LayoutPlan, batch: BatchSpec, nodes: Sequence[str]) -> Placement:
    """`nodes` of the whole model, opened down to its units."""
    axes = {axis.name: axis.size for axis in layout.mesh}
    data_parallel = axes.get("dp", 1)
    is_sharded = layout.mode == "fsdp" or layout.data_parallel == "fsdp"
    shards = Group(axes.get("shard", data_parallel) if is_sharded else 1)
    replicas = Group(axes.get("replicate", 1), stride=shards.size) if is_sharded else Group(data_parallel)
    if layout.mode == "dp":
        replicas = Group(layout.num_replicas)
    parts: tuple[Part, ...] = (Part("each device", (tuple(nodes),), (1,)),)
    pipes = None
    if layout.pipeline is not None:
        pipeline, num_ranks = layout.pipeline, axes["pp"]
        held = {rank.coordinates["pp"]: rank.stages for rank in layout.ranks}
        parts = tuple(
            Part(
                f"pipeline rank {rank}",
                tuple(pipeline.stages[stage] for stage in stages),
                tuple(in_flight(pipeline.grid[rank], stage) for stage in stages),
            )
            for rank, stages in sorted(held.items())
        )
        pipes = Pipes(pipeline.schedule, num_ranks, pipeline.num_stages, pipeline.wire_elements, data_parallel)
    return Placement(
        mode=layout.mode,
        devices_per_node=layout.gpus_per_node,
        num_devices=max(len(layout.ranks), layout.num_replicas),
        shards=shards,
        replicas=replicas,
        rows=batch.microbatch_size,
        num_microbatches=batch.accumulation * batch.num_microbatches,
        parts=parts,
        pipes=pipes,
    )


def candidate_parts(
    stages: Sequence[tuple[str, ...]], held: Sequence[tuple[int, ...]], schedule: str, num_microbatches: int
) -> tuple[Part, ...]:
    """Of a pipeline that has no grid yet. `held[rank]` are the stages of a rank."""
    return tuple(
        Part(
            f"pipeline rank {rank}",
            tuple(stages[stage] for stage in mine),
            (most_in_flight(schedule, rank, len(held), len(mine), num_microbatches) / len(mine),) * len(mine),
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
