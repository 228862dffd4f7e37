"""Traffic between devices in one optimizer step: what is sent, on which link, and how long it takes.

Collectives are rings, as in NCCL for large messages: each of n devices sends (n - 1) / n of a gathered or scattered
tensor, and twice as much in an all-reduce. A ring over several nodes crosses the network once per node, and is as fast
as its slowest link (Thakur et al., Optimization of collective communication, 2005)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil

from declarative_train.plan.layout import ShardingPlan
from declarative_train.planner.estimate.constants import Link, Machine
from declarative_train.planner.estimate.model import COMPUTE_BYTES, PARAMETER_BYTES, REDUCE_BYTES, ModelFacts
from declarative_train.planner.estimate.placement import DeviceGroup, DevicePart, Placement

TO_STAGES = "stage to stage"
SCATTERED = "gradients, reduce-scatter"
BUCKET_BYTES = 25 * 2**20  # gradients that ddp averages at once


@dataclass(frozen=True, slots=True)
class Transfer:
    """Communication of one kind in a step.

    bytes_sent   bytes that each device sends
    num_calls    number of collectives or messages
    per_s        bytes per second of the link, None if unknown
    latency_s    latency of one call"""

    what: str
    link: Link
    bytes_sent: float
    num_calls: int
    per_s: float | None
    latency_s: float

    @property
    def seconds(self) -> float:
        assert self.per_s is not None
        return self.bytes_sent / self.per_s + self.num_calls * self.latency_s

    @property
    def call_s(self) -> float:
        """Seconds of one collective or message."""
        return self.seconds / max(1, self.num_calls)


def transfers_of(model: ModelFacts, placement: Placement, machine: Machine) -> list[Transfer]:
    """Return the transfers of one step for the device that sends most."""
    every = ([each for kind in KINDS for each in kind(part, model, placement, machine)] for part in placement.parts)
    return max(every, key=lambda transfers: sum(each.bytes_sent for each in transfers))


def gathers(part: DevicePart, model: ModelFacts, placement: Placement, machine: Machine) -> list[Transfer]:
    """Return the all-gathers of sharded parameters, in the compute dtype. They run before the forward of each
    microbatch. Parameters that were freed or resharded after the forward are gathered again before the backward. In a
    pipeline there is one gather per step, because the parameters of a stage stay gathered."""
    if model.num_expert_ranks > 1:
        return _with_experts(gathers, part, model, placement, machine)
    sharding = placement.sharding
    if sharding is None:
        return []
    shards, width = placement.shards, COMPUTE_BYTES[model.precision]
    groups = [(again, shares(names, model, shards, width)) for again, names in gather_groups(part, model, sharding)]
    first, again = [size for _, size in groups], [size for is_again, size in groups if is_again]
    times = placement.num_microbatches if placement.pipes is None else 1
    if sharding.reshard is True:
        return _gather("parameters, all-gather", first + again, times, shards, placement, machine)
    found = _gather("parameters, all-gather", first, times, shards, placement, machine)
    if sharding.reshard:
        near = DeviceGroup(sharding.reshard)
        found += _gather("parameters, all-gather again", again, times, near, placement, machine)
    return found


def _gather(
    what: str, sizes: list[int], times: int, group: DeviceGroup, placement: Placement, machine: Machine
) -> list[Transfer]:
    if group.size < 2:
        return []
    sent = sum(sizes) * times * (group.size - 1) / group.size
    return [_transfer(what, sent, times * len(sizes), group, placement, machine)]


def gather_groups(part: DevicePart, model: ModelFacts, sharding: ShardingPlan) -> list[tuple[bool, list[str]]]:
    """Return (again, names of nodes) for each group of nodes whose parameters fsdp gathers together. `again`: whether
    the parameters may be gathered again in the backward. It is False for the nodes after the last unit (repeated
    block), and for nodes that belong to a stage but to no other group."""
    units = [
        name
        for name in part.nodes
        if model.nodes[name].is_unit and model.nodes[name].parameters and name not in sharding.shared
    ]
    ends = [[name for name in names if name in part.nodes] for names in (sharding.first, sharding.last)]
    taken = {*units, *ends[0], *ends[1]}
    roots = [[name for name in stage if name not in taken and model.nodes[name].parameters] for stage in part.stages]
    found = [*((True, [name]) for name in units), (True, ends[0]), (False, ends[1]), *((False, rest) for rest in roots)]
    return [(again, names) for again, names in found if names]


def shares(names: Iterable[str], model: ModelFacts, group: DeviceGroup, width: int) -> int:
    """Return the total bytes of the parameters of the nodes `names` after sharding over the devices of `group`. The
    padding that makes all shards equal is included. `width`: bytes per element."""
    held = model.share_of(names, group.size)
    return (held.weights * width + held.packed) * group.size


def reductions(part: DevicePart, model: ModelFacts, placement: Placement, machine: Machine) -> list[Transfer]:
    """Return the transfers that combine gradients in a step: the reduce-scatter of ranks that shard parameters, once or
    after every microbatch; one all-reduce of replicas; and one of devices that divide positions."""
    if model.num_expert_ranks > 1:
        return _with_experts(reductions, part, model, placement, machine)
    size = model.share_of(part.nodes).trained * REDUCE_BYTES[model.reduce]
    shards, replicas, found = placement.shards, placement.replicas, []
    sharding = placement.sharding
    if sharding is not None:
        times = 1 if sharding.keeps_gradients else placement.num_microbatches
        size = model.share_of(part.nodes, shards.size).trained * shards.size * REDUCE_BYTES[model.reduce]
        calls = len(gather_groups(part, model, sharding))
        if shards.size > 1:
            sent = times * size * (shards.size - 1) / shards.size
            found.append(_transfer(SCATTERED, sent, times * calls, shards, placement, machine))
        size //= shards.size
    if replicas.size > 1 and not placement.scatters:
        sent = 2 * size * (replicas.size - 1) / replicas.size
        calls = ceil(size / BUCKET_BYTES) if sharding is None else calls
        found.append(_transfer("gradients, all-reduce", sent, calls, replicas, placement, machine))
    if (positions := placement.positions).size > 1:
        sent, calls = 2 * size * (positions.size - 1) / positions.size, ceil(size / BUCKET_BYTES)
        found.append(_transfer("gradients of positions, all-reduce", sent, calls, positions, placement, machine))
    return found


def _with_experts(
    kind: Callable[[DevicePart, ModelFacts, Placement, Machine], list[Transfer]],
    part: DevicePart,
    model: ModelFacts,
    placement: Placement,
    machine: Machine,
) -> list[Transfer]:
    """Return the transfers that `kind`, such as `gathers`, computes for all parameters of a model. `kind` is called
    once for the experts and once for all other parameters, because fewer devices have the same experts."""
    own = placement.of_experts(model.num_expert_ranks)
    return [
        *kind(part, model.without_experts(), placement, machine),
        *(replace(each, what=f"experts: {each.what}") for each in kind(part, model.experts_alone(), own, machine)),
    ]


def dp_transfers(part: DevicePart, model: ModelFacts, placement: Placement, machine: Machine) -> list[Transfer]:
    """Return the transfers of mode `dp`, in the dtype of the parameters. For every forward the first device sends the
    model to the others, and then receives their gradients."""
    if not placement.scatters:
        return []
    others = placement.num_devices - 1
    held, width = model.share_of(part.nodes), PARAMETER_BYTES[model.precision]
    sent = ((held.weights + held.trained) * width + held.packed) * others * placement.num_microbatches
    calls = 2 * others * placement.num_microbatches
    group = DeviceGroup(placement.num_devices)
    return [_transfer("parameters and gradients, by the first device", sent, calls, group, placement, machine)]


def messages(part: DevicePart, model: ModelFacts, placement: Placement, machine: Machine) -> list[Transfer]:
    """Return the messages that a pipeline rank sends to other ranks in a step: the outputs of its stages, and the
    gradients of their inputs."""
    pipes = placement.pipes
    if pipes is None or pipes.num_stages < 2:
        return []
    group = DeviceGroup(pipes.num_ranks, pipes.stride)
    here = frozenset(part.numbers)
    onward = [wire.forward for number, wire in enumerate(pipes.wires) if number in here and number + 1 not in here]
    back = [wire.backward for number, wire in enumerate(pipes.wires) if number + 1 in here and number not in here]
    sent = sum(onward + back) * placement.rows * placement.num_microbatches
    calls = len(onward + back) * placement.num_microbatches
    return [_transfer(TO_STAGES, sent, calls, group, placement, machine)]


def tensor_sums(part: DevicePart, model: ModelFacts, placement: Placement, machine: Machine) -> list[Transfer]:
    """Return the all-reduces of the axis `tensor`, whose ranks divide layers. Forward and backward of all microbatches
    are included."""
    size = model.num_tensor_ranks
    found = [model.sums[name] for name in part.nodes if name in model.sums]
    elements = [each for sums in found for each in (*sums.forward, *sums.backward)]
    if size < 2 or not elements:
        return []
    times = placement.rows * placement.num_microbatches
    sent = 2 * (size - 1) / size * sum(elements) * COMPUTE_BYTES[model.precision] * times
    calls = len(elements) * placement.num_microbatches
    return [_transfer("divided layers, all-reduce", sent, calls, DeviceGroup(size), placement, machine)]


def key_exchanges(part: DevicePart, model: ModelFacts, placement: Placement, machine: Machine) -> list[Transfer]:
    """Return the transfers between the ranks of the axis `context`, which divide the positions of a sequence. For
    attention these ranks exchange keys and values, and the gradients of both. Forward and backward of all microbatches
    are included."""
    found = [model.sums[name] for name in part.nodes if name in model.sums]
    elements = [each for sums in found for each in (*sums.keys, *sums.keys_back)]
    return _exchanges("keys and values", elements, placement.positions, model, placement, machine)


def balance_sums(part: DevicePart, model: ModelFacts, placement: Placement, machine: Machine) -> list[Transfer]:
    """Return the all-reduces for balance losses over the ranks that divide positions (`context`), for forward and
    backward of all microbatches."""
    elements = [each for name in part.nodes if name in model.sums for each in model.sums[name].balance] * 2
    group = placement.positions
    if group.size < 2 or not elements:
        return []
    width = PARAMETER_BYTES[model.precision]  # the scores of experts are never in half precision
    sent = 2 * (group.size - 1) / group.size * sum(elements) * width * placement.rows * placement.num_microbatches
    calls = len(elements) * placement.num_microbatches
    return [_transfer("balance of experts, all-reduce", sent, calls, group, placement, machine)]


def expert_exchanges(part: DevicePart, model: ModelFacts, placement: Placement, machine: Machine) -> list[Transfer]:
    """Return the all-to-all exchanges of the axis `expert`: a rank sends each input row to the rank that has its
    expert, and gets the result back. They include forward and backward of all microbatches. All experts are assumed to
    be used equally."""
    elements = [each for name in part.nodes if name in model.sums for each in model.sums[name].exchanges] * 2
    group = DeviceGroup(model.num_expert_ranks, model.num_tensor_ranks * model.num_context_ranks)
    return _exchanges("rows of experts, all-to-all", elements, group, model, placement, machine)


def _exchanges(
    what: str, elements: Sequence[int], group: DeviceGroup, model: ModelFacts, placement: Placement, machine: Machine
) -> list[Transfer]:
    """Return a list with one Transfer, the sum of several all-to-all exchanges between the ranks of `group`; [] if the
    group has one rank or there are no exchanges. `what`: name of the Transfer. `elements`: for each exchange, its
    number of elements per sample, including those that stay on their rank."""
    if group.size < 2 or not elements:
        return []
    times = placement.rows * placement.num_microbatches
    sent = (group.size - 1) / group.size * sum(elements) * COMPUTE_BYTES[model.precision] * times
    return [_transfer(what, sent, len(elements) * placement.num_microbatches, group, placement, machine)]


def layer_exchanges(part: DevicePart, model: ModelFacts, placement: Placement, machine: Machine) -> list[Transfer]:
    """Return the transfers inside a layer, for which its next kernel must wait. There are some if ranks divide layers
    (`tensor`), positions (`context`) or experts (`expert`)."""
    return [each for kind in IN_LAYERS for each in kind(part, model, placement, machine)]


IN_LAYERS = (tensor_sums, key_exchanges, balance_sums, expert_exchanges)
KINDS = (gathers, reductions, dp_transfers, messages, layer_exchanges)


def _transfer(
    what: str, sent: float, calls: int, group: DeviceGroup, placement: Placement, machine: Machine
) -> Transfer:
    link: Link = "node" if group.size * group.stride <= placement.devices_per_node else "network"
    figures = {"node": machine.hardware.link_per_s, "network": machine.hardware.network_per_s}
    per_s = None if figures[link] is None else machine.link_per_s(link)
    if link == "network" and per_s is not None and what != TO_STAGES:
        members = max(
            1, placement.devices_per_node // group.stride
        )  # ranks of the ring on each node, each with its own link
        per_s *= members
        if members > 1 and figures["node"] is not None:
            per_s = min(per_s, machine.link_per_s("node"))
    members = min(group.size, max(1, placement.devices_per_node // group.stride))
    latency_s = machine.latency_s(members, ceil(group.size / members))
    return Transfer(what, link, sent, calls, per_s, latency_s)
