"""Placement of a model on devices, from which memory and time are estimated. It is made from the layout of a plan, or
from a candidate of `auto`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from declarative_train.components.pipeline_schedules import PIPELINE_SCHEDULES
from declarative_train.core.mesh import Mesh, size_of
from declarative_train.data.spec import BatchSpec
from declarative_train.plan.layout import LayoutPlan, ShardingPlan, WireBytes


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Devices that communicate with each other. There are `size` of them, and the indices of neighbours differ by
    `stride`."""

    size: int
    stride: int = 1


@dataclass(frozen=True, slots=True)
class DevicePart:
    """Part of the model that each device of one kind has.

    stages      for each pipeline stage on the device, the names of its nodes; without a pipeline there is one stage
    in_flight   for each of these stages, the largest number of microbatches that wait for their backward
    numbers     for each of these stages, its index in the pipeline
    """

    name: str
    stages: tuple[tuple[str, ...], ...]
    in_flight: tuple[float, ...]
    numbers: tuple[int, ...] = (0,)

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(name for stage in self.stages for name in stage)


@dataclass(frozen=True, slots=True)
class PipelinePlacement:
    """Facts about a pipeline for estimates. `schedule`: name of its schedule in the recipe. `wires[i]`: bytes per
    sample that stages i and i + 1 send to each other. `stride`: difference between the device indices of consecutive
    pipeline ranks."""

    schedule: str
    num_ranks: int
    num_stages: int
    wires: tuple[WireBytes, ...]
    stride: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Placement of a model on devices.

    scatters           the mode is `dp`: one process sends the model to the other devices and receives their gradients
    shards             the devices that divide each parameter among them
    replicas           the devices with the same part of the model, which average gradients
    rows               samples in each forward (a fraction if several devices divide the positions)
    num_microbatches   the number of forwards of a device in one optimizer step
    parts              the parts of the model, one for each kind of device
    loss_part          index in `parts` of the device that computes the loss; None: the last
    pipes              the pipeline; None without one
    positions          the devices that divide the positions of each sample
    """

    scatters: bool
    devices_per_node: int
    num_devices: int
    shards: DeviceGroup
    replicas: DeviceGroup
    rows: float
    num_microbatches: int
    parts: tuple[DevicePart, ...]
    loss_part: int | None = None
    pipes: PipelinePlacement | None = None
    sharding: ShardingPlan | None = None
    positions: DeviceGroup = DeviceGroup(1)

    @property
    def is_sharded(self) -> bool:
        return self.shards.size > 1

    def of_experts(self, size: int) -> Placement:
        """Return the placement for the parameters of experts. `size`: number of ranks that have different experts. The
        group `shards` (or `replicas`, if parameters are not sharded) is `size` times smaller than for other
        parameters."""
        if self.sharding is not None:
            return replace(self, shards=DeviceGroup(self.shards.size // size, self.shards.stride * size))
        return replace(self, replicas=DeviceGroup(self.replicas.size // size, self.replicas.stride * size))


def placement_of(layout: LayoutPlan, batch: BatchSpec, nodes: Sequence[str]) -> Placement:
    """Return the Placement of a model on devices in one training step. `nodes`: the names of all graph nodes of the
    model."""
    shards, replicas = groups(layout.mesh, layout.num_copies)
    parts: tuple[DevicePart, ...] = (DevicePart("each device", (tuple(nodes),), (1,)),)
    pipes = None
    if layout.pipeline is not None:
        pipeline, num_ranks = layout.pipeline, layout.size("pipeline")
        held = {rank.coordinates["pipeline"]: rank.stages for rank in layout.ranks}
        parts = tuple(
            DevicePart(
                f"pipeline rank {rank}",
                tuple(pipeline.stages[stage] for stage in stages),
                tuple(in_flight(pipeline.grid[rank], stage) for stage in stages),
                stages,
            )
            for rank, stages in sorted(held.items())
        )
        pipes = PipelinePlacement(
            pipeline.schedule,
            num_ranks,
            pipeline.num_stages,
            pipeline.wire_bytes,
            layout.data_parallel_size * layout.size("context", "tensor"),
        )
    return Placement(
        scatters=layout.scatters,
        devices_per_node=layout.gpus_per_node,
        num_devices=layout.num_devices,
        shards=shards,
        replicas=replicas,
        rows=batch.microbatch_size / layout.size("context"),
        num_microbatches=batch.accumulation * batch.num_microbatches,
        parts=parts,
        loss_part=None if layout.pipeline is None else layout.pipeline.last_stage_rank,
        pipes=pipes,
        sharding=layout.sharding,
        positions=DeviceGroup(layout.size("context"), layout.size("tensor")),
    )


def groups(mesh: Mesh, num_copies: int = 1) -> tuple[DeviceGroup, DeviceGroup]:
    """Return (shards, replicas): the group of devices among which a parameter is divided, and the group of devices that
    have the same shard and average its gradients. `num_copies`: number of copies of the mesh; `replicas` has devices of
    all copies."""
    inner, expert = size_of(mesh, "context", "tensor"), size_of(mesh, "expert")
    shards, replicas = size_of(mesh, "shard"), size_of(mesh, "replicate") * num_copies
    if any(axis.name == "shard" for axis in mesh):
        shards *= expert
    else:
        replicas *= expert
    return DeviceGroup(shards, inner), DeviceGroup(replicas, stride=shards * inner)


def candidate_parts(
    stages: Sequence[tuple[str, ...]], held: Sequence[tuple[int, ...]], schedule: str, num_microbatches: int
) -> tuple[DevicePart, ...]:
    """Return the part of the model on each rank of a pipeline. `stages`: names of the nodes in each stage.
    `held[rank]`: indices of the stages on a rank. `schedule`: name of the pipeline schedule, which decides how many
    microbatches wait for their backward on each rank."""
    row = PIPELINE_SCHEDULES[schedule]
    return tuple(
        DevicePart(
            f"pipeline rank {rank}",
            tuple(stages[stage] for stage in mine),
            (row.most_in_flight(rank, len(held), len(mine), num_microbatches) / len(mine),) * len(mine),
            mine,
        )
        for rank, mine in enumerate(held)
    )


def in_flight(row: Sequence[str], stage: int) -> int:
    """Return the largest number of microbatches that have had their forward, but not their backward, on a stage at the
    same time. `row`: the actions of the stage's rank in their order, such as `["0F0", "0F1", "0B0"]`; `0F1` is the
    forward of microbatch 1 on stage 0."""
    most = now = 0
    for cell in row:
        for action in cell.split("+"):
            now += action.startswith(f"{stage}F")
            now -= action.startswith((f"{stage}B", f"{stage}W"))
            most = max(most, now)
    return most
