"""Facts about a model that estimates need and that do not depend on the layout. They are computed once for all
candidates of `auto`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, prod
from typing import Any

from declarative_train.components.hardware.hardware import Precision
from declarative_train.components.optimizers import OPTIMIZERS
from declarative_train.components.storages import storage_bytes
from declarative_train.graph.chunked import heads_of
from declarative_train.graph.cost import Work, activations
from declarative_train.graph.graph import Graph, Node, above
from declarative_train.graph.partition import open_blocks
from declarative_train.plan.channels_last import ImageLayout, ReorderedElements, Word, count_reordered_by_node
from declarative_train.plan.flops import unit_works
from declarative_train.plan.layout import LayoutPlan
from declarative_train.plan.plan import ParameterPlan, Plan
from declarative_train.plan.recomputation import Recomputation
from declarative_train.planner.estimate.kernels import NodeKernels, divide_kernels, kernels_of, with_sums
from declarative_train.planner.estimate.rank_model import Sums, divide_for_rank

PARAMETER_BYTES = {"fp32": 4, "bf16": 4, "fp16": 4, "fp64": 8}  # and of gradients and optimizer state
REDUCE_BYTES = {"fp64": 8, "fp32": 4, "bf16": 2}  # of gradients in reductions
COMPUTE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp64": 8}  # of activations, and of gathered parameters


@dataclass(frozen=True, slots=True)
class ParameterShare:
    """Size of some parameters on one device, in elements. Tied parameters count once.

    weights   all elements
    trained   elements that are not frozen
    state     elements of optimizer state
    packed    bytes of weights that are stored in fewer bits; these weights are not in `weights`"""

    weights: int = 0
    trained: int = 0
    state: int = 0
    packed: int = 0

    def __add__(self, other: ParameterShare) -> ParameterShare:
        return ParameterShare(
            self.weights + other.weights,
            self.trained + other.trained,
            self.state + other.state,
            self.packed + other.packed,
        )


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Facts about one graph node, for estimates.

    is_unit      the node is a repeated block
    works        arithmetic and traffic of the layers in the node
    recomputed   fraction of its forward that the backward computes again
    kept         elements per sample that it keeps from forward to backward
    passing      elements per sample that exist only during the backward, because the node is recomputed"""

    name: str
    is_unit: bool
    works: tuple[Work, ...]
    recomputed: float
    kept: int
    passing: int
    parameters: tuple[tuple[int, int, int, int], ...]  # for each tensor, the four numbers of `ParameterShare`
    experts: tuple[tuple[int, int, int, int], ...] = ()  # the same for the part of the experts that one rank has
    reordered: ReorderedElements = field(default_factory=ReorderedElements)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts about a model, for estimates of its memory and time. Other fields are described in `model_facts`.

    opened   the model's graph; a unit (repeated block) is one node, other blocks are replaced by their nodes
    nodes    dict from node name to facts, in the order of the graph
    scored   elements per sample that all losses read
    judged   the same without losses with `chunks`, whose inputs are never whole in memory
    held     plans of the parameters
    sums     dict from node name to the communication inside the node
    """

    opened: Graph
    nodes: dict[str, NodeFacts]
    precision: Precision
    judged: int = 0
    scored: int = 0
    compiled: bool = False
    reduce: str = "fp32"
    matmul: str = "highest"
    images: ImageLayout = field(
        default_factory=lambda: ImageLayout("auto", ReorderedElements(), "fp32", has_plugins=False)
    )
    held: tuple[ParameterPlan, ...] = field(default=(), repr=False)
    sums: dict[str, Sums] = field(default_factory=dict, repr=False)
    num_tensor_ranks: int = 1
    num_context_ranks: int = 1
    num_expert_ranks: int = 1
    devices_per_node: int = 1
    _shares: dict[tuple[str, int], ParameterShare] = field(default_factory=dict, repr=False, compare=False)
    _kernels: dict[str, NodeKernels] = field(default_factory=dict, repr=False, compare=False)

    @property
    def arithmetic(self) -> Precision:
        """Number format in which matrix products are computed. The peak rate of a device depends on it."""
        return "tf32" if self.precision == "fp32" and self.matmul == "tf32" else self.precision

    def kernels(self, name: str) -> NodeKernels:
        """Return the kernels of a node. The first call traces all nodes of the model."""
        if not self._kernels:
            works = {node.name: node.works for node in self.nodes.values()}
            self._set_kernels(kernels_of(self.opened, self.held, works, self.precision))
        return self._kernels[name]

    def with_kernels_of(self, whole: ModelFacts) -> ModelFacts:
        """Return a copy with kernels from `whole`, the facts about the undivided model, instead of traced kernels. The
        work of each is divided equally over the ranks of `tensor`. A step time computed from these kernels is only a
        lower bound."""
        made = replace(self, _kernels={})
        made._set_kernels({name: divide_kernels(whole.kernels(name), self.num_tensor_ranks) for name in self.nodes})
        return made

    def _set_kernels(self, kernels: Mapping[str, NodeKernels]) -> None:
        """Set the kernels of all nodes. Add a kernel to a node for each collective inside it (`self.sums`)."""
        self._kernels.update(kernels)
        width, inner = COMPUTE_BYTES[self.precision], self.num_tensor_ranks * self.num_context_ranks
        for node, sums in self.sums.items():
            exchanged, keys = Sums(sums.exchanges, sums.exchanges), Sums(sums.keys, sums.keys_back)
            balance = Sums(sums.balance, sums.balance)
            for each, size, stride, sent in (
                (sums, self.num_tensor_ranks, 1, 2 * width),
                (keys, self.num_context_ranks, self.num_tensor_ranks, width),
                (balance, self.num_context_ranks, self.num_tensor_ranks, 2 * PARAMETER_BYTES[self.precision]),
                (exchanged, self.num_expert_ranks, inner, width),
            ):
                found, near = self._kernels[node], max(1, self.devices_per_node // stride)
                self._kernels[node] = with_sums(found, each, size, near, sent)

    def share(self, name: str, num_shards: int) -> ParameterShare:
        """Return how much of a node's parameters one device has, if `num_shards` devices divide them."""
        key = (name, num_shards)
        if key not in self._shares:
            node = self.nodes[name]
            of_experts = max(1, num_shards // self.num_expert_ranks)  # the ranks of `expert` divide them already
            self._shares[key] = _share(node.parameters, num_shards) + _share(node.experts, of_experts)
        return self._shares[key]

    def without_experts(self) -> ModelFacts:
        """Return these facts without the parameters of experts, which the ranks of the `expert` axis divide."""
        return self._with_parameters({name: node.parameters for name, node in self.nodes.items()})

    def experts_alone(self) -> ModelFacts:
        """Return a copy in which the parameters of experts are the only parameters."""
        return self._with_parameters({name: node.experts for name, node in self.nodes.items()})

    def _with_parameters(self, held: Mapping[str, tuple[tuple[int, int, int, int], ...]]) -> ModelFacts:
        nodes = {name: replace(node, parameters=held[name], experts=()) for name, node in self.nodes.items()}
        return replace(self, nodes=nodes, num_expert_ranks=1, _shares={}, _kernels={})

    def share_of(self, names: Iterable[str], num_shards: int = 1) -> ParameterShare:
        return sum((self.share(name, num_shards) for name in names), ParameterShare())


def _share(tensors: Sequence[tuple[int, int, int, int]], num_shards: int) -> ParameterShare:
    if not tensors:
        return ParameterShare()
    sizes = zip(*((ceil(size / num_shards) for size in each) for each in tensors), strict=True)
    return ParameterShare(*(sum(column) for column in sizes))


def model_facts(
    graph: Graph,
    parameters: tuple[ParameterPlan, ...],
    units: tuple[str, ...],
    *,
    precision: Precision,
    reduce: str,
    matmul: str,
    recomputation: Recomputation,
    optimizer: Mapping[str, object],
    heads: Collection[str] = (),
    averages: bool = False,
    channels_last: Word = "auto",
    plugins: tuple[str, ...] = (),
    compiled: bool = False,
    of_experts: Collection[str] = (),
) -> ModelFacts:
    """Return the facts about a model from which memory and step time are estimated.

    units        names of the repeated blocks
    reduce       dtype in which gradients are reduced
    matmul       `tf32` or `highest`
    optimizer    fields of the run's optimizer
    heads        linear layers whose loss has `chunks`, so the forward is computed twice
    averages     the run keeps a moving average of the parameters
    compiled     elementwise operations are fused
    of_experts   parameters that the ranks of the `expert` axis divide
    """
    opened = open_blocks(graph, units)
    works = unit_works(opened, parameters)
    tensors = _tensors(opened, (each for each in parameters if each.name not in of_experts), optimizer, averages)
    experts = _tensors(opened, (each for each in parameters if each.name in of_experts), optimizer, averages)
    around = count_reordered_by_node(opened)
    nodes, computed_again = {}, recomputation.units(units)
    for node in opened.nodes:
        again = recomputation.part_of(node, computed_again)
        inside = activations(node)
        if node.name in heads:  # it outputs one loss per item in place of its scores
            again, inside = 1.0, _count_outputs(node) // next(iter(node.outputs.values())).shape[-1]
        nodes[node.name] = NodeFacts(
            name=node.name,
            is_unit=node.name in units,
            works=works[node.name],
            recomputed=again,
            kept=round(again * _count_outputs(node) + (1 - again) * inside) if node.name not in heads else inside,
            passing=inside if again else 0,
            parameters=tuple(tensors.get(node.name, ())),
            experts=tuple(experts.get(node.name, ())),
            reordered=around[node.name],
        )
    sizes = [(edge.partition(":")[0], opened.spec(edge).num_elements) for edge in opened.outputs.values()]
    judged = sum(size for name, size in sizes if name not in heads)
    images = ImageLayout(channels_last, sum(around.values(), ReorderedElements()), precision, bool(plugins))
    scored = sum(size for _, size in sizes)
    return ModelFacts(opened, nodes, precision, judged, scored, compiled, reduce, matmul, images, parameters)


def facts_of(plan: Plan) -> ModelFacts:
    """Return the facts about the part of a plan's model that one rank computes. It is the whole model, unless the axes
    `tensor`, `context` or `expert` divide it."""
    training = plan.training
    return facts_of_rank(
        plan.layout,
        plan.graph,
        plan.parameters,
        precision=training.precision,
        reduce=training.reduce,
        matmul=training.matmul,
        recomputation=training.recomputation,
        optimizer=training.optimizer,
        heads=heads_of(plan.graph, plan.objective.terms),
        averages=training.ema_decay is not None,
        channels_last=training.channels_last,
        plugins=plan.plugins,
        compiled=training.compile,
    )


def facts_of_rank(
    layout: LayoutPlan, graph: Graph, parameters: tuple[ParameterPlan, ...], **settings: Any
) -> ModelFacts:
    """Return the facts about the part of a model that one rank computes. It is the whole model, except if the axes
    `tensor`, `context` or `expert` divide it. `settings`: keyword arguments of `model_facts`; `precision` is required.
    """
    graph, parameters, sums = divide_for_rank(layout, graph, parameters, settings["precision"])
    of_experts = () if layout.cuts is None else layout.cuts.of_experts
    facts = model_facts(graph, parameters, layout.units, of_experts=of_experts, **settings)
    for path, each in sums.items():
        node = next(way for way in (path, *sorted(above([path]), reverse=True)) if way in facts.nodes)
        facts.sums[node] = facts.sums.get(node, Sums()) + each
    return replace(
        facts,
        num_tensor_ranks=layout.size("tensor"),
        num_context_ranks=layout.size("context"),
        num_expert_ranks=layout.size("expert"),
        devices_per_node=layout.gpus_per_node,
    )


def _count_outputs(node: Node) -> int:
    return sum(spec.num_elements for spec in node.outputs.values())


def _tensors(
    opened: Graph, parameters: Iterable[ParameterPlan], optimizer: Mapping[str, object], averages: bool
) -> dict[str, list[tuple[int, int, int, int]]]:
    """Return the sizes of all parameters by node: a dict from node name to a list with one tuple for each parameter.

    The tuple is (elements, trained elements, elements of optimizer state, packed bytes). A parameter stored in fewer
    bits has only packed bytes; its other numbers are 0. A tied parameter is left out. `averages`: the run keeps a
    moving average of the parameters, which counts as state.
    """
    names = {node.name for node in opened.nodes}
    found: dict[str, list[tuple[int, int, int, int]]] = {}
    for item in parameters:
        if item.tie is not None:
            continue
        parts = item.name.split(".")
        node = next(way for end in range(len(parts), 0, -1) if (way := ".".join(parts[:end])) in names)
        if item.storage is not None:
            found.setdefault(node, []).append((0, 0, 0, storage_bytes(item.storage, item.shape)))
            continue
        size = prod(item.shape)
        state = OPTIMIZERS.read(item.optimizer or optimizer).num_state_elements(item.shape) + size * averages
        found.setdefault(node, []).append((size, 0, 0, 0) if item.frozen else (size, size, state, 0))
    return found
