"""Checks of a plan without a run: whether the gradients of all ranks, combined as the plan says, give the gradient of
the whole batch.

They cover the rows and parts of layers that each rank computes, and the reductions and the factor of each gradient. Of
ranks that differ only along `replicate`, one is checked. How the parts of a layer must be combined is derived from its
component, not from the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any

from declarative_train.core.cuts import LayerCut
from declarative_train.core.mesh import DATA_AXES
from declarative_train.graph.cuts import Cuts
from declarative_train.graph.graph import Graph, Node
from declarative_train.graph.partition import open_blocks
from declarative_train.graph.read import read_layer
from declarative_train.plan.plan import Plan
from declarative_train.tools.verify.reductions import reductions_of


@dataclass(frozen=True, slots=True)
class GradientRow:
    """Parameters whose gradients are reduced in the same way. `how`: the reduction, as text. `num_parameters`,
    `num_elements`: number of these parameters, and of their elements. `example`: name of one of them."""

    how: str
    num_parameters: int
    num_elements: int
    example: str


@dataclass(frozen=True, slots=True)
class Checked:
    """Result of the checks of a plan. `problems`: a sentence for each mistake. `rows`: table with one row for each
    different way in which gradients are reduced. `num_classes`: number of different ranks; ranks that differ only in
    their rows of the batch count once."""

    num_classes: int
    rows: tuple[GradientRow, ...]
    problems: tuple[str, ...]


def check_plan(plan: Plan) -> Checked:
    """Check a plan. Return the mistakes found, and a table of how the gradients are reduced."""
    problems = [*_check_ranks(plan), *_check_rows(plan), *_check_parameters(plan), *_check_stages(plan)]
    layout, cuts = plan.layout, plan.layout.cuts
    if cuts is not None:
        problems += _check_cuts(plan, cuts)
    elif layout.has("tensor") or layout.has("expert"):
        problems.append("the mesh has an axis that divides layers, but the plan divides none")
    if layout.has("context") and (layout.context is None or layout.context.length % (2 * layout.size("context"))):
        problems.append("the mesh has an axis `context`, but the positions do not divide over its ranks")
    num_kinds = prod(axis.size for axis in layout.mesh if axis.name != "replicate")
    return Checked(num_kinds, _gradient_rows(plan), tuple(problems))


def _check_ranks(plan: Plan) -> Iterator[str]:
    """Yield a sentence for each mistake in the layout of ranks: the product of the mesh's sizes must be the number of
    ranks, and the ranks of a node must have different devices."""
    layout = plan.layout
    size = prod(axis.size for axis in layout.mesh)
    if layout.mesh and layout.num_nodes * layout.gpus_per_node != size:
        yield f"the mesh has {size} places, the plan {layout.num_nodes * layout.gpus_per_node} ranks"
    if layout.mesh and len(set(layout.rank_devices)) != layout.gpus_per_node:
        yield f"{layout.gpus_per_node} ranks of a node have the devices {layout.rank_devices}"


def _check_rows(plan: Plan) -> Iterator[str]:
    """Yield a sentence for each error in how the ranks share the global batch: rows that are read twice or not at all,
    and a loss factor with which gradients are not those of the global batch."""
    batch, layout = plan.batch, plan.layout
    read = batch.data_parallel_size * batch.accumulation * batch.microbatch_size * batch.num_microbatches
    if read != batch.global_batch_size:
        yield f"the ranks read {read} rows of a global batch of {batch.global_batch_size}"
    if batch.data_parallel_size != layout.data_parallel_size:
        yield (
            f"the batch is divided over {batch.data_parallel_size} ranks or replicas, "
            f"but {layout.data_parallel_size} read different rows"
        )
    # the loss of a rank is scaled by the ranks that read different rows; the mean divides by those of the axes
    mean = prod(axis.size for axis in layout.mesh if axis.name in DATA_AXES)
    scale = Fraction(batch.data_parallel_size // layout.num_copies, mean)
    if scale != 1:
        yield f"gradients are {scale} times those of the global batch: the scale of the loss does not cancel the mean"


def _check_parameters(plan: Plan) -> Iterator[str]:
    shapes = {item.name: item.shape for item in plan.parameters}
    for item in plan.parameters:
        if prod(item.shape) != item.num_elements:
            yield f"`{item.name}` has the shape {item.shape}, but {item.num_elements} elements"
        if item.tie is not None and shapes.get(item.tie) != item.shape:
            yield f"`{item.name}` is tied to `{item.tie}`, which does not have its shape {item.shape}"


def _check_stages(plan: Plan) -> Iterator[str]:
    """Yield a sentence for each mistake in the pipeline. Each node must be in exactly one stage. Each stage must be on
    one index of the axis `pipeline` and compute each microbatch once. If several stages use a parameter, its gradient
    must be summed over these stages."""
    layout, pipeline = plan.layout, plan.layout.pipeline
    if pipeline is None:
        if layout.has("pipeline"):
            yield "the mesh has an axis `pipeline`, but the plan has no stages"
        return
    opened = open_blocks(plan.graph, layout.units)
    names = [name for stage in pipeline.stages for name in stage]
    for name, count in Counter(names).items():
        if count > 1:
            yield f"`{name}` is in {count} stages"
    for node in opened.nodes:
        if node.name not in names:
            yield f"`{node.name}` is in no stage"
    held = Counter(stage for stages in pipeline.rank_stages for stage in stages)
    for stage in range(pipeline.num_stages):
        if held[stage] != 1:
            yield f"stage {stage} is on {held[stage]} places of `pipeline`"
    number = plan.batch.accumulation * plan.batch.num_microbatches
    if pipeline.num_microbatches != number:
        yield f"the schedule runs {pipeline.num_microbatches} microbatches, but a step has {number}"
    yield from _check_schedule(pipeline.grid, pipeline.num_stages, number)
    users = {name: stages for name, stages in _users(opened, pipeline.stages, plan).items() if len(stages) > 1}
    shared = {item.name: tuple(item.stages) for item in pipeline.shared}
    for name in users.keys() | shared.keys():
        if tuple(users.get(name, ())) != shared.get(name, ()):
            yield (
                f"`{name}` is used by the stages {_format_stages(users.get(name, ()))}, "
                f"but its gradient is summed over {_format_stages(shared.get(name, ()))}"
            )


def _check_schedule(grid: tuple[tuple[str, ...], ...], num_stages: int, num_microbatches: int) -> Iterator[str]:
    done: Counter[str] = Counter()
    for row in grid:
        for cell in row:
            for action in cell.split("+"):
                if action:
                    stage, _, number = action.partition(kind := next(each for each in action if each.isalpha()))
                    done[f"{stage}{'B' if kind == 'W' else kind}{number}"] += kind != "I"
    for kind, word in (("F", "forward"), ("B", "backward")):
        for place, at in product(range(num_stages), range(num_microbatches)):
            if (count := done[f"{place}{kind}{at}"]) != 1:
                yield f"the schedule runs the {word} of microbatch {at} in stage {place} {count} times"
                return


def _users(graph: Graph, stages: tuple[tuple[str, ...], ...], plan: Plan) -> dict[str, tuple[int, ...]]:
    """Return a dict from parameter name to the indices of the pipeline stages that use the parameter. A tied parameter
    has no key: its stages are listed under the parameter to which it is tied. `stages`: the names of the nodes in each
    stage."""
    stage_of = {name: number for number, names in enumerate(stages) for name in names}
    by_node = {node.name: {stage_of.get(node.name, -1)} for node in graph.nodes}
    for node in graph.nodes:
        if node.target is not None:
            by_node[node.target].add(stage_of.get(node.name, -1))
    found: dict[str, set[int]] = {}
    for item in plan.parameters:
        users = by_node.get(_node_of(item.name, by_node), set())
        found.setdefault(item.tie or item.name, set()).update(users)
    return {name: tuple(sorted(stages)) for name, stages in found.items()}


def _node_of(parameter: str, nodes: Mapping[str, object]) -> str:
    parts = parameter.split(".")
    ways = (".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1))
    return next((way for way in ways if way in nodes), "")


def _check_cuts(plan: Plan, cuts: Cuts) -> Iterator[str]:
    """Yield a sentence for each mistake in how layers are divided over `tensor` and `expert`. The parts of a parameter
    must cover it exactly. A gradient must be summed over `tensor` if each rank computes a part of it, and only then."""
    size, of_experts = plan.layout.size("tensor"), cuts.of_experts
    parameters = {item.name: item for item in plan.parameters}
    for name, cut in cuts.parameters.items():
        item, parts = parameters.get(name), plan.layout.size("expert" if name in of_experts else "tensor")
        if item is None:
            yield f"`{name}` is divided, but the model has no such parameter"
        elif sum(cut.pieces) != item.shape[cut.dim] or any(piece % parts for piece in cut.pieces):
            yield f"`{name}` {item.shape} cannot be divided into equal parts of {cut.pieces} for {parts} ranks"
        elif item.tie is not None and cuts.parameters.get(item.tie) != cut:
            yield f"`{name}` is tied to `{item.tie}`, which is divided in another way"
    wanted: set[str] = set()
    for path, node, specs in _layers(plan.graph):
        layer = read_layer(node.component or {}, plan.plugins)
        kind = cuts.nodes[path].kind if path in cuts.nodes else ""
        tokens = cuts.tokens.get(path)
        own = {name for name in parameters if name.startswith(f"{path}.")}
        if kind:
            asked = "columns" if kind in ("gathered", "vocabulary") and layer.type == "linear" else kind
            parts = plan.layout.size("expert" if kind == "experts" else "tensor")
            inside = {part.kind for part in cuts.parts.get(path, {}).values()}
            found = layer.cut(asked, specs, parts) if kind != "inside" or inside - {"", "experts"} else None
            experts = layer.cut("experts", specs, plan.layout.size("expert")) if "experts" in inside else None
            if not isinstance(experts or found, LayerCut):
                yield f"`{path}` cannot be divided by {kind} over {parts} ranks"
                continue
            whole = _name_in_model(path, found, experts)
            for name in own:
                planned, own_cut = cuts.parameters.get(name), whole.parameters.get(name)
                if planned != own_cut:
                    yield f"`{name}`: the plan divides it as {planned}, the layer as {own_cut}"
            wanted |= set(whole.summed)
            if tokens is not None and tokens.writes == "tokens":
                wanted |= own & {f"{path}.bias", f"{path}.out.bias"} - cuts.parameters.keys()
        elif tokens is not None and tokens.is_each and tokens.reads == "tokens":
            wanted |= own
    wanted = {name for name in wanted if name in parameters}
    for name in sorted(wanted - set(cuts.summed)):
        yield f"`{name}`: each rank of `tensor` computes a part of its gradient, which is not summed"
    for name in sorted(set(cuts.summed) - wanted):
        yield f"`{name}`: every rank of `tensor` has its whole gradient, which is summed {size} times"


def _name_in_model(path: str, found: LayerCut | str | None, experts: LayerCut | str | None) -> Cuts:
    """Return how the parameters of the layer at `path` are divided over ranks, by their names in the model, such as
    `path.weight`. `found`: division of the layer over the axis `tensor`, by names within the layer. `experts`: division
    of its experts over the axis `expert`. A text or None means that there is no division."""
    cuts = Cuts()
    if isinstance(found, LayerCut):
        own = {f"{path}.{name}": cut for name, cut in found.parameters.items()}
        cuts = Cuts(parameters=own, summed=tuple(f"{path}.{name}" for name in found.summed))
    return cuts.with_experts(path, experts) if isinstance(experts, LayerCut) else cuts


def _layers(graph: Graph, prefix: str = "") -> Iterator[tuple[str, Node, dict[str, Any]]]:
    specs = graph.specs()
    for node in graph.nodes:
        if node.graph is not None:
            yield from _layers(node.graph, f"{prefix}{node.name}.")
        elif node.kind == "layer":
            yield f"{prefix}{node.name}", node, {port: specs[edge] for port, edge in node.inputs.items()}


def _gradient_rows(plan: Plan) -> tuple[GradientRow, ...]:
    """Return a table row for each way in which gradients are combined over ranks. It has the number and the size of the
    parameters concerned, and one of them as an example."""
    layout, reductions = plan.layout, reductions_of(plan)
    parts = {} if layout.cuts is None else layout.cuts.parameters
    of_experts = frozenset() if layout.cuts is None else layout.cuts.of_experts
    found: dict[str, list[tuple[str, int]]] = {}
    for item in plan.parameters:
        if item.tie is not None:
            how = "tied to another parameter"
        elif item.frozen:
            how = "none: it is frozen"
        else:
            words = list(map(str, reductions[item.name]))
            if item.name in parts:
                words.insert(0, f"a part on each rank of `{'expert' if item.name in of_experts else 'tensor'}`")
            elif layout.cuts is not None and layout.has("tensor") and item.name not in layout.cuts.summed:
                words.insert(0, "equal on each rank of `tensor`")
            how = ", then ".join(words) or "of one rank"
        found.setdefault(how, []).append((item.name, item.num_elements))
    return tuple(
        GradientRow(how, len(items), sum(size for _, size in items), items[0][0]) for how, items in found.items()
    )


def _format_stages(stages: tuple[int, ...]) -> str:
    return ", ".join(map(str, stages)) or "none"
