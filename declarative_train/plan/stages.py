"""Pipeline stages of a model: the cuts, the values sent between stages, and the schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from declarative_train.components.pipeline_schedules import PIPELINE_SCHEDULES
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.mesh import size_of
from declarative_train.core.span import Span
from declarative_train.graph.cost import num_parameters
from declarative_train.graph.graph import Graph
from declarative_train.graph.lower import Lowered
from declarative_train.graph.partition import Stage, open_blocks, stage_graphs
from declarative_train.plan.checks.stages import (
    cut_not_a_node,
    cut_out_of_order,
    nothing_in_stage,
    reuse_across_stages,
    reuse_with_split_backward,
    tie_across_stages,
    too_few_nodes,
)
from declarative_train.plan.layout import LayoutPlan, PipelinePlan, SharedParameter, WireBytes
from declarative_train.plan.plan import ParameterPlan
from declarative_train.plan.schedule_grid import schedule_grid
from declarative_train.plan.stage_balance import balance_cuts
from declarative_train.recipe.recipe import Recipe
from declarative_train.recipe.sections.parallelism import PipelineAxis

Stages = tuple[tuple[str, ...], ...]
P = TypeVar("P")
COMPUTE_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
BYTES_OF = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "bfloat16": 2, "float16": 2, "int16": 2}
BYTES_OF |= dict.fromkeys(("int8", "uint8", "bool"), 1)


@dataclass(frozen=True, slots=True)
class PlacementInput:
    """Inputs of the functions that divide a model into pipeline stages. `num_microbatches`: microbatches in one
    optimizer step, those of all accumulation steps together."""

    recipe: Recipe
    lowered: Lowered
    parameters: tuple[ParameterPlan, ...]
    num_microbatches: int


def pipeline_of(
    site: PlacementInput, pipeline: PipelineAxis, layout: LayoutPlan
) -> tuple[PipelinePlan | None, list[Diagnostic]]:
    """Return a PipelinePlan (the stages and the schedule), and diagnostics. The plan is None if the model cannot be
    cut."""
    opened = open_blocks(site.lowered.graph, site.lowered.units)
    stages, diagnostics = stages_of(site, pipeline, opened)
    if stages is None:
        return None, diagnostics
    schedule, num_ranks = PIPELINE_SCHEDULES[pipeline.schedule], layout.size("pipeline")
    pieces = stage_graphs(opened, stages)
    return PipelinePlan(
        schedule=pipeline.schedule,
        num_stages=len(stages),
        num_microbatches=site.num_microbatches,
        stages=stages,
        wires=tuple(piece.wires_out for piece in pieces[:-1]),
        grid=schedule_grid(schedule, num_ranks, len(stages), site.num_microbatches),
        last_stage_rank=schedule.rank_of(len(stages) - 1, num_ranks, len(stages)),
        rank_stages=tuple(schedule.stages_of(rank, num_ranks, len(stages)) for rank in range(num_ranks)),
        num_parameters=tuple(_count_parameters(names, site, opened) for names in stages),
        wire_elements=wire_elements(pieces),
        wire_dtypes=wire_dtypes(pieces, site.recipe.training.precision.compute),
        wire_bytes=wire_bytes(pieces, site.recipe.training.precision.compute),
        shared=find_shared(site.parameters, opened, stages),
    ), diagnostics


def _count_parameters(names: Sequence[str], site: PlacementInput, opened: Graph) -> int:
    return sum(num_parameters(name, site.lowered.parameters) for name in _holders(names, opened))


def _holders(names: Sequence[str], opened: Graph) -> dict[str, None]:
    """Return the nodes whose parameters a stage needs, as the keys of a dict: first the stage's nodes (`names`), then
    the nodes that `reuse` nodes among them call again."""
    called = (opened.node(name).target for name in names)
    return dict.fromkeys(names) | dict.fromkeys(name for name in called if name is not None)


def find_shared(parameters: Sequence[ParameterPlan], opened: Graph, stages: Stages) -> tuple[SharedParameter, ...]:
    """Return the parameters that several pipeline stages use, in the order of the model. Tied parameters count as one,
    with the name of the parameter that they are tied to.

    `opened`: the model's graph after `open_blocks`, so that each node is in one stage. `stages`: names of the nodes of
    each stage.
    """
    nodes = {node.name: node.name for node in opened.nodes}
    holders = [_holders(names, opened) for names in stages]
    found: dict[str, set[int]] = {}
    for item in parameters:
        node = _value_of_node(item.name, nodes)
        held = {position for position, names in enumerate(holders) if node in names}
        found.setdefault(item.tie or item.name, set()).update(held)
    return tuple(SharedParameter(name, tuple(sorted(held))) for name, held in found.items() if len(held) > 1)


def stages_of(site: PlacementInput, pipeline: PipelineAxis, opened: Graph) -> tuple[Stages | None, list[Diagnostic]]:
    """Return the names of the nodes of each stage, and diagnostics. The names are None if the model cannot be cut."""
    stages, diagnostics = _stages(site, pipeline, opened)
    if stages is None:
        return None, diagnostics
    diagnostics += _check_across(site, pipeline, opened, stages)
    return (None if any(item.is_error for item in diagnostics) else stages), diagnostics


def wire_elements(pieces: Sequence[Stage]) -> tuple[int, ...]:
    """Return, for each stage except the first, the number of elements per sample that the previous stage sends to it.
    `pieces`: graphs of all stages."""
    return tuple(sum(piece.graph.inputs[name].num_elements for name in piece.wires_in) for piece in pieces[1:])


def wire_dtypes(pieces: Sequence[Stage], precision: str) -> tuple[tuple[str, ...], ...]:
    """Return the dtypes of the values that each pipeline stage receives from the previous one, for all stages but the
    first. `pieces`: all stages.

    Integers keep their dtype. Floats have the compute dtype of `precision`. Floats that a loss or metric reads have the
    dtype of the parameters instead.
    """
    read = {name for name, edge in pieces[-1].graph.outputs.items()} | set(pieces[-1].graph.outputs.values())
    wide = "float64" if precision == "fp64" else "float32"
    narrow = COMPUTE_DTYPES.get(precision, wide)
    return tuple(
        tuple(
            spec.dtype if not spec.is_floating else wide if name in read else narrow
            for name in piece.wires_in
            for spec in [piece.graph.inputs[name]]
        )
        for piece in pieces[1:]
    )


def wire_bytes(pieces: Sequence[Stage], precision: str) -> tuple[WireBytes, ...]:
    """Return, for each pair of neighbouring stages, the bytes per sample that they send to each other. `pieces`: graphs
    of all stages."""
    found = []
    for piece, dtypes in zip(pieces[1:], wire_dtypes(pieces, precision), strict=True):
        specs = [piece.graph.inputs[name] for name in piece.wires_in]
        sizes = [spec.num_elements * BYTES_OF[dtype] for spec, dtype in zip(specs, dtypes, strict=True)]
        back = sum(size for spec, size in zip(specs, sizes, strict=True) if spec.is_floating)
        found.append(WireBytes(sum(sizes), back))
    return tuple(found)


def _stages(site: PlacementInput, pipeline: PipelineAxis, opened: Graph) -> tuple[Stages | None, list[Diagnostic]]:
    span = site.recipe.span("parallelism.pipeline.stages")
    if len(opened.nodes) < pipeline.stages:
        return None, [too_few_nodes(span, pipeline.stages, _with_parameters(site, opened))]
    if pipeline.cut_before != "auto":
        return _cut_by_names(site, pipeline.cut_before, opened)
    stages = balance_cuts(opened, site.lowered.parameters, pipeline.stages, _find_linked(site, opened))
    if stages is None:
        return None, [too_few_nodes(span, pipeline.stages, _with_parameters(site, opened))]
    return stages, []


def _find_linked(site: PlacementInput, opened: Graph) -> list[tuple[str, str]]:
    """Return the pairs of nodes that share a parameter. Either a parameter of one node is tied to a parameter of the
    other, or one node calls the other again (`reuse`)."""
    place = {node.name: node.name for node in opened.nodes}
    ties = [(item.name, item.tie) for item in site.parameters if item.tie is not None]
    pairs = [(_value_of_node(name, place), _value_of_node(source, place)) for name, source in ties]
    return pairs + [(node.name, node.target) for node in opened.nodes if node.target is not None]


def _with_parameters(site: PlacementInput, opened: Graph) -> list[str]:
    return [node.name for node in opened.nodes if num_parameters(node.name, site.lowered.parameters)]


def _cut_by_names(
    site: PlacementInput, cut_before: Sequence[str], opened: Graph
) -> tuple[Stages | None, list[Diagnostic]]:
    """Cut the model before each node in `cut_before`. The name of a `repeat` or a block stands for its first node.
    Return the names of the nodes of each stage, and errors; the names are None after an error."""
    names = [node.name for node in opened.nodes]
    starts, diagnostics = [0], list[Diagnostic]()
    for position, name in enumerate(cut_before):
        span = site.recipe.span(("parallelism", "pipeline", "cut_before", position))
        found = next((at for at, each in enumerate(names) if each == name or each.startswith(f"{name}.")), None)
        if found is None:
            diagnostics.append(cut_not_a_node(span, name, names))
        elif found <= starts[-1]:
            diagnostics.append(cut_out_of_order(span, name, names[starts[-1]]))
        else:
            starts.append(found)
    if diagnostics:
        return None, diagnostics
    stages = tuple(tuple(names[start:end]) for start, end in zip(starts, [*starts[1:], len(names)], strict=True))
    for position, stage in enumerate(stages):
        if not _count_parameters(stage, site, opened):
            span = site.recipe.span(("parallelism", "pipeline", "cut_before", max(0, position - 1)))
            diagnostics.append(nothing_in_stage(span, position, stage))
    return (None if diagnostics else stages), diagnostics


def _check_across(site: PlacementInput, pipeline: PipelineAxis, opened: Graph, stages: Stages) -> list[Diagnostic]:
    """Return an error for each of these:

    tied parameter  that two stages on one rank use, if parameters are sharded
    `reuse` node    in another stage than the node that it calls again, if this node mixes samples, has running
                    statistics or comes from a plugin
    node            that runs twice in one stage, if the schedule splits the backward"""
    place = {name: position for position, names in enumerate(stages) for name in names}
    diagnostics = list(_check_copies(site, pipeline, find_shared(site.parameters, opened, stages)))
    special = [fact.path for fact in site.lowered.facts if fact.kind in ("mixes_samples", "statistics", "plugin")]
    for node in opened.nodes:
        if node.kind == "reuse" and node.target is not None:
            here, there, target = place[node.name], place[node.target], node.target
            if here != there and any(path == target or path.startswith(f"{target}.") for path in special):
                span, later = _cut_span(site, max(here, there)), stages[max(here, there)][0]
                diagnostics.append(reuse_across_stages(span, node.name, here, target, there, later))
    if PIPELINE_SCHEDULES[pipeline.schedule].splits_backward:
        again = [node.name for node in opened.nodes if _calls_twice(node.name, opened, place)]
        if again:
            span = site.recipe.span("parallelism.pipeline.schedule")
            diagnostics.append(reuse_with_split_backward(span, pipeline.schedule, again[0]))
    return diagnostics


def _calls_twice(name: str, graph: Graph, place: Mapping[str, int]) -> bool:
    """Return whether the module of a node runs twice within one stage. `place`: dict from node to the index of its
    stage. A module that runs in two stages does not count: it is copied, and runs once in each."""
    node = graph.node(name)
    if node.kind == "reuse":
        others = (each.name for each in graph.nodes if each.target == node.target and each.name != name)
        return any(place.get(each) == place.get(name) for each in (str(node.target), *others))
    return node.graph is not None and any(_calls_twice(inner.name, node.graph, {}) for inner in node.graph.nodes)


def _value_of_node(parameter: str, place: Mapping[str, P]) -> P:
    """Return the value in `place` for the node that contains `parameter`. `place`: {path of a node: value}. If the
    parameter's name begins with several of the paths, the longest path counts."""
    parts = parameter.split(".")
    ways = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next(place[way] for way in ways if way in place)


def _check_copies(
    site: PlacementInput, pipeline: PipelineAxis, shared: Sequence[SharedParameter]
) -> Iterator[Diagnostic]:
    """Report the first tied parameter that two stages on one rank use, in a mode that shards parameters. Both stages
    have the same tensor then, which `fully_shard` cannot shard twice."""
    mesh = site.recipe.mode.mesh(site.recipe.layout.num_gpus)
    if mesh is None or size_of(mesh, "shard") == 1:
        return
    schedule, num_ranks = PIPELINE_SCHEDULES[pipeline.schedule], size_of(mesh, "pipeline")
    for item in shared:
        ranks = [schedule.rank_of(stage, num_ranks, pipeline.stages) for stage in item.stages]
        again = next((at for at, rank in enumerate(ranks) if rank in ranks[:at]), None)
        if again is not None:
            first = item.stages[ranks.index(ranks[again])]
            span = site.recipe.span("parallelism.pipeline.schedule")
            yield tie_across_stages(span, item.name, first, item.stages[again], pipeline.schedule)
            return


def _cut_span(site: PlacementInput, stage: int) -> Span:
    """Return the span in the recipe of the cut before stage `stage`. If the recipe does not list the cuts, return the
    span of the nearest key above, such as `parallelism.pipeline`."""
    return site.recipe.span(("parallelism", "pipeline", "cut_before", stage - 1))
