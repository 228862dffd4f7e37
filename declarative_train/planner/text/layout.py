"""Text of a plan's layout: the mesh, the ranks, the stages of a pipeline, and the grid of its schedule."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from declarative_train.core.amounts import amount, format_count, list_names, ranges
from declarative_train.core.mesh import Axis
from declarative_train.plan.layout import ContextPlan, LayoutPlan, PipelinePlan, RankPlan, ShardingPlan
from declarative_train.plan.plan import ParameterPlan, Plan
from declarative_train.plan.schedule_grid import bubble
from declarative_train.planner.text.model import columns

_MOST_RANKS = 16  # that are listed one by one
_MOST_STAGES = 16
_MOST_COLUMNS = 24  # of the grid of a schedule


def describe_layout(plan: Plan) -> list[str]:
    layout = plan.layout
    if layout.scatters:
        return [f"one process, a replica on each of the devices {ranges(sorted(layout.devices))}"]
    if layout.is_one_process:
        return [f"one process on device {layout.ranks[0].device}"]
    mesh = " x ".join(f"{axis.name} {axis.size}" for axis in layout.mesh)
    lines = [f"mesh: {mesh}" + (", the last axis over neighbours" if len(layout.mesh) > 1 else "")]
    lines += _ranks(layout)
    if layout.units:
        lines.append(f"units: {len(layout.units)}, from {layout.units[0]} to {layout.units[-1]}")
    if layout.sharding is not None and layout.pipeline is None:
        lines += _sharding(layout.sharding, plan.batch.accumulation)
    if layout.context is not None:
        lines.append(describe_context(layout.context, layout.size("context")))
    if layout.cuts is not None:
        lines += describe_cuts(layout, plan.parameters)
    return lines + (_pipeline(layout.pipeline) if layout.pipeline is not None else [])


def _sharding(sharding: ShardingPlan, num_chunks: int) -> list[str]:
    """Return up to two lines about sharding, for the description of a plan. One says where gathered parameters are
    until the backward; it is left out if they are freed after the forward. The other says when gradients are reduced;
    it is left out if a step has a single chunk (forward). `num_chunks`: number of chunks in a step."""
    lines = []
    if sharding.reshard is False:
        lines.append("gathered parameters stay until the backward")
    elif sharding.reshard is not True:
        lines.append(f"gathered parameters are spread over {sharding.reshard} neighbours until the backward")
    if num_chunks > 1 and sharding.keeps_gradients:
        lines.append(f"full gradients are accumulated over the {num_chunks} chunks of a step, and are reduced once")
    elif num_chunks > 1:
        lines.append(f"gradients are reduced after each of the {num_chunks} chunks of a step")
    return lines


def describe_context(context: ContextPlan, size: int) -> str:
    """Return a text that says which positions each of the `size` ranks of the `context` axis has."""
    chunk, last = context.length // (2 * size), 2 * size - 1
    return (
        f"{format_count(size, 'rank')} of the context axis share the {context.length} positions of "
        f"{', '.join(context.names)}: of {2 * size} chunks of {chunk}, rank i has chunks i and {last} - i"
        f"{'; keys travel around the ranks' * (context.keys == 'ring')}"
    )


def describe_cuts(layout: LayoutPlan, parameters: Sequence[ParameterPlan]) -> list[str]:
    """Return lines that say how each layer is divided over the ranks of the axes `tensor` and `expert`, or why it stays
    whole. Equal layers in the copies of a `repeat` share a line."""
    assert layout.cuts is not None
    cuts, of_experts = layout.cuts, layout.cuts.of_experts
    total = sum(item.num_elements for item in parameters if item.tie is None)
    axes: tuple[tuple[Axis, Collection[str]], ...] = (
        ("tensor", cuts.parameters.keys() - of_experts),
        ("expert", of_experts),
    )
    heads = []
    for axis, names in axes:
        if layout.has(axis):
            divided = sum(item.num_elements for item in parameters if item.tie is None and item.name in names)
            ranks = format_count(layout.size(axis), "rank")
            heads.append(f"{ranks} of the {axis} axis share {divided / total:.0%} of the parameters")
    groups: dict[tuple[str, str, str], list[list[int]]] = {}
    for path, node in cuts.with_parts():
        words = path.split(".")
        pattern = ".".join("{}" if word.isdigit() else word for word in words)
        groups.setdefault((pattern, node.kind, node.reason), []).append([int(word) for word in words if word.isdigit()])
    rows = [
        [
            pattern.format(*(ranges(sorted(set(each))) for each in zip(*numbers, strict=True))),
            kind or f"whole: {reason}",
        ]
        for (pattern, kind, reason), numbers in groups.items()
    ]
    if cuts.tokens:
        owned = sum(cut.is_each and cut.reads == "tokens" for cut in cuts.tokens.values())
        heads[0] += f"; between the divided layers each has its own tokens, in {format_count(owned, 'other layer')}"
    return [*heads, *columns([["node", "divided by"], *rows], numbers=False)]


def _ranks(layout: LayoutPlan) -> list[str]:
    axes = [axis.name for axis in layout.mesh]
    head = ["rank", "node", "device", *axes, *(["stages"] if layout.pipeline is not None else [])]
    if len(layout.ranks) <= _MOST_RANKS:
        return columns([head, *(_rank(rank, axes, layout) for rank in layout.ranks)])
    return _collapse(layout)


def _rank(rank: RankPlan, axes: Sequence[str], layout: LayoutPlan) -> list[str]:
    stages = [", ".join(map(str, rank.stages))] if layout.pipeline is not None else []
    return [str(rank.rank), str(rank.node), str(rank.device), *(str(rank.coordinates[axis]) for axis in axes), *stages]


def _collapse(layout: LayoutPlan) -> list[str]:
    """Return the table of the ranks as lines: a header, and one line for each group of ranks with the same stages.
    Without a pipeline, all ranks are one group. After `_MOST_RANKS` groups, a last line gives the number of the
    remaining groups."""
    alike: dict[tuple[int, ...], list[RankPlan]] = {}
    for rank in layout.ranks:
        alike.setdefault(rank.stages, []).append(rank)
    rows = [["ranks", "nodes", "stages" if layout.pipeline is not None else ""]]
    for stages, ranks in alike.items():
        numbers, nodes = [rank.rank for rank in ranks], sorted({rank.node for rank in ranks})
        rows.append([_short(numbers), _short(nodes), ", ".join(map(str, stages))])
    if len(rows) > _MOST_RANKS + 1:
        rows = [
            *rows[: _MOST_RANKS + 1],
            ["...", "", f"and {format_count(len(rows) - 1 - _MOST_RANKS, 'more row')} alike"],
        ]
    return columns(rows)


def _short(numbers: Sequence[int]) -> str:
    text = ranges(numbers)
    return text if len(text) <= 40 else f"{len(numbers)} from {numbers[0]} to {numbers[-1]}"


def _pipeline(pipeline: PipelinePlan) -> list[str]:
    rows = [["stage", "from", "to", "parameters", "sends per sample"]]
    for stage, names in enumerate(pipeline.stages):
        sent = pipeline.wires[stage] if stage < len(pipeline.wires) else ()
        elements = amount(pipeline.wire_elements[stage]) if sent else ""
        shown = f"{', '.join(sent[:3])}{', ...' if len(sent) > 3 else ''}: {elements} elements" if sent else ""
        rows.append([str(stage), names[0], names[-1], f"{pipeline.num_parameters[stage]:,}", shown])
    if len(rows) > _MOST_STAGES + 1:
        half = _MOST_STAGES // 2
        rows = [
            *rows[: half + 1],
            ["...", "", "", "", f"{format_count(len(rows) - 1 - 2 * half, 'stage')} between"],
            *rows[-half:],
        ]
    idle = bubble(pipeline.grid)
    lines = [
        *columns(rows),
        f"schedule {pipeline.schedule}, {format_count(pipeline.num_microbatches, 'microbatch')} per step: "
        f"{idle:.0%} of the grid is idle; the loss is on pipeline rank {pipeline.last_stage_rank}",
    ]
    return [*lines, *_describe_shared(pipeline), _legend(pipeline), *_grid(pipeline)]


def _describe_shared(pipeline: PipelinePlan) -> list[str]:
    """Return lines on the parameters of which several pipeline stages have copies. One line lists all parameters with
    copies in the same stages."""
    by_stages: dict[tuple[int, ...], list[str]] = {}
    for item in pipeline.shared:
        by_stages.setdefault(item.stages, []).append(item.name)
    return [
        f"copies of {list_names(names, 3)} in the stages {', '.join(map(str, stages))}: their gradients are summed"
        for stages, names in by_stages.items()
    ]


def _legend(pipeline: PipelinePlan) -> str:
    """Return a text that explains the letters in the grid of the schedule."""
    written = "".join(cell for row in pipeline.grid for cell in row)
    first = pipeline.grid[0][0]
    stage, _, number = first.partition("F")
    meanings = {
        "B": "B backward",
        "I": "I backward to the inputs",
        "W": "W backward to the weights",
        "+": "+ both at once",
    }
    found = [meaning for letter, meaning in meanings.items() if letter in written]
    words = [f"{first} is stage {stage}, forward of microbatch {number}", *found, ". idle", "time runs to the right"]
    return "; ".join(words)


def _grid(pipeline: PipelinePlan) -> list[str]:
    """Return the schedule as lines, with a row for each rank of a pipeline and a column for each unit of time. The
    cell `1F0` means stage 1, forward, microbatch 0."""
    ranks = list(range(len(pipeline.grid)))
    shown = ranks if len(ranks) <= 8 else [*ranks[:4], *ranks[-4:]]
    rows = [[f"rank {rank}", *(cell or "." for cell in pipeline.grid[rank][:_MOST_COLUMNS])] for rank in shown]
    length = len(pipeline.grid[0])
    rest = []
    if len(shown) < len(ranks):
        rest.append(f"{format_count(len(ranks) - len(shown), 'rank')} between them not shown")
    if length > _MOST_COLUMNS:
        rest.append(f"and {format_count(length - _MOST_COLUMNS, 'more time')}")
    return columns(rows) + (["; ".join(rest)] if rest else [])
