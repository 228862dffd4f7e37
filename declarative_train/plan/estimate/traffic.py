"""What travels between devices in one optimizer step, on which link, and how long it takes.

Rings, as NCCL uses them for large messages: of n devices each sends (n - 1) / n of a gathered or scattered tensor, and
twice that in an all-reduce. A ring over several nodes enters and leaves each of them once, through the network of all
its members there; it is as fast as its slowest link (Thakur et al., Optimization of collective communication, 2005).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

from declarative_train.components.hardware.hardware import Hardware
from declarative_train.plan.estimate.model import COMPUTE_BYTES, PARAMETER_BYTES, ModelFacts
from declarative_train.plan.estimate.placement import Group, Part, Placement

LINK_EFFICIENCY = 0.8  # of a link's figure: what large collectives reach
BUCKET_BYTES = 25 * 2**20  # gradients that ddp averages at once
LATENCY_S = 20e-6  # of one collective or message, whatever its size

Link = Literal["node", "network"]


@dataclass(frozen=True, slots=True)
class Transfer:
    """`bytes_sent` by each device in a step, in `num_calls` collectives or messages."""

    what: str
    link: Link
    bytes_sent: float
    num_calls: int
    per_s: float | None

    @property
    def seconds(self) -> float:
        assert self.per_s is not None
        return self.bytes_sent / (self.per_s * LINK_EFFICIENCY) + self.num_calls * LATENCY_S


def transfers_of(model: ModelFacts, placement: Placement, hardware: Hardware) -> list[Transfer]:
    """All of the device that sends the most."""
    every = (
        [each for kind in (gathers, reductions, scattered) for each in kind(part, model, placement, hardware)]
        for part in placement.parts
    )
    most = max(every, key=lambda transfers: sum(each.bytes_sent for each in transfers))
    return [*most, *messages(model, placement, hardware)]


def gathers(part: Part, model: ModelFacts, placement: Placement, hardware: Hardware) -> list[Transfer]:
    """Sharded parameters made whole, for each microbatch: units before the forward and again before the backward, what
    is beside them once; in a pipeline once a step, since a stage stays whole."""
    if not placement.is_sharded:
        return []
    group, times = placement.shards, 1
    elements, calls = model.held_by(part.nodes).weights, _calls(part, model)
    if placement.pipes is None:
        units = [name for name in part.nodes if model.nodes[name].is_unit]
        elements, calls = elements + model.held_by(units).weights, calls + len(units)
        times = placement.num_microbatches
    sent = times * elements * COMPUTE_BYTES[model.precision] * (group.size - 1) / group.size
    return [_collective("parameters, all-gather", sent, times * calls, group, placement, hardware)]


def reductions(part: Part, model: ModelFacts, placement: Placement, hardware: Hardware) -> list[Transfer]:
    """Gradients, once a step: scattered over the shards, averaged over those who hold the same."""
    size = model.held_by(part.nodes).trained * PARAMETER_BYTES[model.precision]
    shards, replicas, found = placement.shards, placement.replicas, []
    if placement.is_sharded:
        sent = size * (shards.size - 1) / shards.size
        calls = _calls(part, model)
        found.append(_collective("gradients, reduce-scatter", sent, calls, shards, placement, hardware))
        size //= shards.size
    if replicas.size > 1 and not placement.scatters:
        sent = 2 * size * (replicas.size - 1) / replicas.size
        calls = ceil(size / BUCKET_BYTES)
        found.append(_collective("gradients, all-reduce", sent, calls, replicas, placement, hardware))
    return found


def scattered(part: Part, model: ModelFacts, placement: Placement, hardware: Hardware) -> list[Transfer]:
    """In `dp` the first device sends the model to the others, at every forward, and takes their gradients."""
    if not placement.scatters:
        return []
    others = placement.num_devices - 1
    held, width = model.held_by(part.nodes), PARAMETER_BYTES[model.precision]
    sent = (held.weights + held.trained) * width * others * placement.num_microbatches
    calls = 2 * others * placement.num_microbatches
    return [Transfer("parameters and gradients, by the first device", "node", sent, calls, hardware.link_per_s)]


def messages(model: ModelFacts, placement: Placement, hardware: Hardware) -> list[Transfer]:
    """Between the stages of a pipeline, both ways: what a rank in the middle sends."""
    pipes = placement.pipes
    if pipes is None or pipes.num_stages < 2:
        return []
    group = Group(pipes.num_ranks, pipes.stride)
    link: Link = "node" if group.size * group.stride <= placement.devices_per_node else "network"
    per_s = hardware.link_per_s if link == "node" else hardware.network_per_s
    crossings = 2 * placement.num_microbatches
    elements = sum(pipes.wires) / pipes.num_ranks * placement.rows * crossings
    calls = round(len(pipes.wires) / pipes.num_ranks * crossings)
    return [Transfer("stage to stage", link, elements * COMPUTE_BYTES[model.precision], calls, per_s)]


def _calls(part: Part, model: ModelFacts) -> int:
    """One for each unit, and one for what is beside them."""
    return 1 + sum(model.nodes[name].is_unit for name in part.nodes)


def _collective(what: str, sent: float, calls: int, group: Group, placement: Placement, hardware: Hardware) -> Transfer:
    per_node = placement.devices_per_node
    if group.size * group.stride <= per_node:
        return Transfer(what, "node", sent, calls, hardware.link_per_s)
    members = max(1, per_node // group.stride)  # of the ring on each node, each with its part of the network
    per_s = None if hardware.network_per_s is None else hardware.network_per_s * members
    if per_s is not None and members > 1 and hardware.link_per_s is not None:
        per_s = min(per_s, hardware.link_per_s)
    return Transfer(what, "network", sent, calls, per_s)
