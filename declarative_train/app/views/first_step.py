"""First step of a plan as small tables: the rows and outputs of each rank, its loss and gradient, the combination of
the gradients, and the update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from declarative_train.app.views.data_flow import holders, list_numbers
from declarative_train.app.views.table import fit_lines, table
from declarative_train.core.amounts import format_count
from declarative_train.core.mesh import DATA_AXES

if TYPE_CHECKING:
    import torch

    from declarative_train.plan.plan import Plan
    from declarative_train.run.simulated_first_step import RankedStep

SHOWN = 4  # shown numbers of a parameter
SHOWN_OF_ROW = 3


def first_step(plan: Plan, width: int | None) -> str:
    """Compute the first step of a plan and return its values, rank by rank, as text. For a model with more than
    MOST_PARAMETERS parameters, return a sentence that says so. Raises RunFailure, DataError, SourceError,
    BadSampleError."""
    from declarative_train.run.simulated_first_step import MOST_PARAMETERS, compute_ranked_step

    count = sum(item.num_elements for item in plan.parameters if item.tie is None)
    if count > MOST_PARAMETERS:
        most = f"{MOST_PARAMETERS // 1_000_000} million"
        return f"the numbers of a step are shown for models of up to {most} parameters; this one has {count:,}"
    step = compute_ranked_step(plan)
    return "\n\n".join(part for each in _parts(plan, step, width) for part in each)


def _parts(plan: Plan, step: RankedStep, width: int | None) -> Iterator[tuple[str, str]]:
    """Yield (sentence, table) for each section of the text about a step."""
    places, batch = part_places(plan), plan.batch
    size = step.rows * len(step.parts)
    title = f"the first step, with {format_count(step.rows, 'row')} for each {plan.layout.place_word}"
    if plan.layout.pipeline is not None:
        title = f"the first step, with one microbatch of {format_count(step.rows, 'row')}"
    title += f": a batch of {size} instead of {batch.global_batch_size:,}, computed here in float32"
    if plan.draws and (plan.layout.scatters or plan.layout.pipeline is not None):
        title += "; a run draws other random numbers"
    outputs = ("where", "sample", *step.parts[0].fields, *plan.graph.outputs)
    rows = [
        (place, f"{sample:,}", *(_format_values(each[row], SHOWN_OF_ROW) for each in part.fields.values()),
         *(_format_values(part.values[name][row], SHOWN_OF_ROW) for name in plan.graph.outputs))
        for place, part in zip(places, step.parts, strict=True)
        for row, sample in enumerate(part.samples[: step.rows])
    ]  # fmt: skip
    yield fit_lines(title, width), table(outputs, rows, right=(1,), width=width)
    if plan.layout.pipeline is not None:
        yield from _wires(plan, step, width)
    yield from _losses(plan, step, places, width)
    yield from _gradients(plan, step, places, width)
    yield from _update(plan, step, width)


def part_places(plan: Plan) -> list[str]:
    """Return a text for each part of a batch: the device or the ranks that compute it. A batch has one part for each
    data-parallel rank; ranks of other axes can share a part."""
    layout, count = plan.layout, plan.batch.data_parallel_size
    if layout.is_one_process:
        return ["process"] if count == 1 else [f"device {index}" for index in range(count)]
    sizes = {axis.name: axis.size for axis in layout.mesh}
    groups: list[list[int]] = [[] for _ in range(count)]
    for rank in layout.ranks:
        at = 0
        for name in DATA_AXES:
            if name in sizes:
                at = at * sizes[name] + rank.coordinates[name]
        groups[at].append(rank.rank)
    return [list_numbers(plan, ranks) if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}" for ranks in groups]


def _wires(plan: Plan, step: RankedStep, width: int | None) -> Iterator[tuple[str, str]]:
    """Yield (sentence, table) on the values that each pipeline stage sends to the next one, and on the gradients that
    come back. Yield nothing if there are none."""
    pipeline = plan.layout.pipeline
    assert pipeline is not None
    rows = [
        (f"stage {stage} -> {stage + 1}", f"{holders(plan, stage)} -> {holders(plan, stage + 1)}", name,
         *(_format_values(each[name][0], SHOWN_OF_ROW) if name in each else "-"
           for each in (part.values, part.returned)))
        for part in step.parts[:1]
        for stage, names in enumerate(pipeline.wires)
        for name in names
        if name in part.values
    ]  # fmt: skip
    if rows:
        title = "sent between the stages, for the first row: values forward, their gradients backward"
        yield fit_lines(title, width), table(("stages", "ranks", "value", "forward", "backward"), rows, width=width)


def _losses(plan: Plan, step: RankedStep, places: Sequence[str], width: int | None) -> Iterator[tuple[str, str]]:
    if len(step.parts) == 1:
        where = holders(plan, plan.layout.pipeline.num_stages - 1) if plan.layout.pipeline is not None else places[0]
        yield "the loss", table(("where", "loss"), [(where, f"{step.loss:.6f}")], right=(1,), width=width)
        return
    rows = [(place, f"{part.loss:.6f}") for place, part in zip(places, step.parts, strict=True)]
    if plan.layout.scatters:
        title = "the loss of the gathered outputs on device 0, and the part of each device's rows in it"
        rows.append(("sum, device 0", f"{step.loss:.6f}"))
    else:
        title = "the loss of each rank's rows; their mean is the loss of the batch"
        rows.append(("mean", f"{step.loss:.6f}"))
    yield fit_lines(title, width), table(("where", "loss"), rows, right=(1,), width=width)


def _gradients(plan: Plan, step: RankedStep, places: Sequence[str], width: int | None) -> Iterator[tuple[str, str]]:
    """Yield (title, table) for the gradients of some parameters: their values on each rank, and the sum or mean over
    the ranks. Yield nothing if there is only one data-parallel rank. `places`: names of the ranks."""
    if len(step.parts) == 1:
        return
    together = "sum" if plan.layout.scatters else "mean"
    title = {
        "sum": "gradients of each device's rows; device 0 adds them up",
        "mean": "gradients of each rank's rows; an all-reduce gives every rank their mean",
    }[together]
    if plan.layout.is_sharded:
        title = "gradients of each rank's rows; a reduce-scatter gives each rank its shard of their mean"
    rows = []
    for name in step.shown:
        for place, part in zip(places, step.parts, strict=True):
            rows.append((name, place, _format_values(part.gradients[name])))
        rows.append((name, together, _format_values(step.combine(name, mean=together == "mean"))))
    yield fit_lines(title, width), table(("parameter", "where", "gradient"), rows, width=width)


def _update(plan: Plan, step: RankedStep, width: int | None) -> Iterator[tuple[str, str]]:
    clip = plan.training.clip_grad_norm
    title = "the update, alike on every rank" if len(plan.layout.ranks) > 1 else "the update"
    if plan.layout.is_sharded:
        title = "the update: each rank updates its shard, a part of the first dimension"
    elif plan.layout.pipeline is not None:
        title = "the update: each rank updates the parameters of its stages"
    if clip is not None:
        how = f"clipped to {clip:g}" if step.norm > clip else f"not clipped, as it is below {clip:g}"
        title += f"; the norm of all gradients is {step.norm:.4g}, {how}"
    title += f"; {step.lr}"
    rows = []
    for index, name in enumerate(step.shown):
        for where, at in _shards(plan, index, step.before[name]):
            label = name if at is ... else f"{name}[{at.start}:{at.stop}]"
            before, after = step.before[name][at], step.after[name][at]
            rows.append((label, where, "gradient", _format_values(step.gradients[name][at])))
            rows += [("", "", "before", _format_values(before)), ("", "", "change", _format_values(after - before))]
            rows.append(("", "", "after", _format_values(after)))
    yield fit_lines(title, width), table(("parameter", "where", "", "numbers"), rows, width=width, longest_word=24)


def _shards(plan: Plan, index: int, parameter: torch.Tensor) -> Iterator[tuple[str, Any]]:
    """Yield (ranks, slice) for each shard of `parameter`. `ranks`: names of the ranks that update the shard, as text.
    `slice`: the shard's rows in the parameter; `...` if the parameter is not sharded. `index`: index of the pipeline
    stage that has the parameter; 0 without a pipeline."""
    layout = plan.layout
    if layout.pipeline is not None:
        yield holders(plan, index), ...
    elif not layout.is_sharded:
        yield "all ranks" if len(layout.ranks) > 1 else ("device 0" if layout.scatters else "process"), ...
    else:
        for shard, part in enumerate(parameter.chunk(layout.num_shards)):
            start = shard * len(parameter.chunk(layout.num_shards)[0])
            ranks = [rank.rank for rank in layout.ranks if rank.coordinates["shard"] == shard]
            yield list_numbers(plan, ranks), slice(start, start + len(part))


def _format_values(values: torch.Tensor, most: int = SHOWN) -> str:
    """Return the first `most` values of a tensor as text, with four digits each."""
    flat = values.detach().flatten()
    shown = " ".join(f"{value:.4g}" if isinstance(value, float) else f"{value:d}" for value in flat[:most].tolist())
    return shown + (" ..." if flat.numel() > most else "")
