"""Candidates of `parallelism: auto`: the modes in which a recipe could run on its devices. They are ordered from the
simplest to the most complex, because `auto` chooses the first of equally fast modes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import get_args

from declarative_train.components.pipeline_schedules import PIPELINE_SCHEDULES
from declarative_train.core.amounts import format_count
from declarative_train.recipe.recipe import Recipe
from declarative_train.recipe.sections.parallelism import (
    Axes,
    ContextAxis,
    DataAxes,
    Parallelism,
    PipelineAxis,
    Schedule,
    TensorAxis,
)

FILLINGS = (1, 2, 4, 8)
"""Microbatches per rank of a pipeline. More of them shrink the bubble, but smaller microbatches are less efficient."""
MOST_REPLICAS = 4096
MOST_DIVIDED = 16  # ranks that divide a layer, or the positions of a sequence
STAGED_FILLINGS = (2, 8)  # the same for a pipeline whose layers are divided too; there only 1f1b is tried
DEFAULT: Schedule = "1f1b"  # chosen if other schedules are equally fast
SCHEDULES: tuple[Schedule, ...] = (DEFAULT, *(name for name in get_args(Schedule) if name != DEFAULT))


@dataclass(frozen=True, slots=True)
class Candidate:
    """Mode that `auto` considers. `family`: name of a group of similar modes, such as `tensor` or `pipeline of 2`; the
    plan's table shows only the best mode of each family. `name`: name of this mode alone, such as `tensor 4 x fsdp 2`;
    "" if the mode has the name of its family."""

    parallelism: Parallelism
    family: str
    name: str = ""

    @property
    def words(self) -> str:
        pipeline, name = self.parallelism.pipeline, self.name or self.family
        if pipeline is None:
            return name
        return f"{name}, {pipeline.schedule}, {format_count(pipeline.microbatches, 'microbatch')}"


def candidates(recipe: Recipe, most_stages: int) -> Iterator[Candidate]:
    """Yield the modes in which each rank computes whole layers: ddp, fsdp and pipelines, or `single` for one GPU.
    `most_stages`: the largest possible number of pipeline stages (each stage needs a graph node with parameters)."""
    layout = recipe.layout
    if layout.num_gpus == 1:
        yield Candidate(Axes(), "single")
        return
    yield Candidate(Axes(data=DataAxes(replicate="all")), "ddp")
    yield Candidate(Axes(data=DataAxes(shard="all")), "fsdp")
    for groups in divisors(layout.num_nodes, 2, min(layout.num_gpus - 1, MOST_REPLICAS)):
        yield Candidate(Axes(data=DataAxes(replicate=groups, shard="all")), f"fsdp, {groups} replicas")
    for num_ranks in divisors(layout.num_gpus, 2, most_stages):
        yield from _pipelines(recipe, num_ranks, layout.num_gpus // num_ranks, most_stages)


def list_divided(recipe: Recipe, most_stages: int) -> Iterator[Candidate]:
    """Yield the candidates of `auto` with an axis `tensor`, `context` or `expert`, whose ranks are on one machine. Such
    an axis is combined with fsdp or ddp if it does not use all GPUs; `tensor` is also combined with `context` or a
    pipeline. `most_stages`: the largest possible number of pipeline stages."""
    layout = recipe.layout
    sizes = divisors(layout.num_gpus_per_node, 2, MOST_DIVIDED)
    for size in sizes:
        for suffix, data in _data_products(layout.num_gpus // size):
            yield Candidate(Axes(tensor=TensorAxis(size=size), data=data), "tensor", f"tensor {size}{suffix}")
            yield Candidate(Axes(context=ContextAxis(size=size), data=data), "context", f"context {size}{suffix}")
            yield Candidate(Axes(expert=size, data=data), "expert", f"expert {size}{suffix}")
    for size in sizes:
        yield from _tensor_products(recipe, size, most_stages)


def _tensor_products(recipe: Recipe, size: int, most_stages: int) -> Iterator[Candidate]:
    """Yield the modes that combine `tensor` over `size` ranks with `context` or with a pipeline."""
    layout, tensor, others = recipe.layout, TensorAxis(size=size), recipe.layout.num_gpus // size
    least = max(2, others // MOST_REPLICAS)
    for parts in divisors(layout.num_gpus_per_node // size, least, MOST_DIVIDED):
        for suffix, data in _data_products(others // parts):
            axes = Axes(tensor=tensor, context=ContextAxis(size=parts), data=data)
            yield Candidate(axes, "tensor x context", f"tensor {size} x context {parts}{suffix}")
    for num_ranks in divisors(others, least, most_stages):
        for suffix, data in _data_products(others // num_ranks):
            for number in _microbatches(recipe, num_ranks, others // num_ranks, STAGED_FILLINGS):
                pipeline = PipelineAxis(stages=num_ranks, schedule=DEFAULT, microbatches=number)
                name = f"tensor {size} x pipeline of {num_ranks}{suffix}"
                yield Candidate(Axes(tensor=tensor, pipeline=pipeline, data=data), "tensor x pipeline", name)


def _data_products(size: int) -> list[tuple[str, DataAxes | None]]:
    """Return the ways to use `size` ranks for data parallelism, by fsdp or by ddp, as pairs (suffix, axes). `suffix`:
    text that is added to the name of the mode. For one rank, return [("", None)]."""
    if size == 1:
        return [("", None)]
    return [(f" x fsdp {size}", DataAxes(shard=size)), (f" x ddp {size}", DataAxes(replicate=size))]


def _pipelines(recipe: Recipe, num_ranks: int, size: int, most_stages: int) -> Iterator[Candidate]:
    for suffix, data in reversed(_data_products(size)):
        for schedule in SCHEDULES:
            num_stages = num_ranks * _stages_per_rank(schedule)
            if num_stages > most_stages:
                continue
            for number in _microbatches(recipe, num_ranks, size, FILLINGS):
                pipeline = PipelineAxis(stages=num_stages, schedule=schedule, microbatches=number)
                yield Candidate(Axes(data=data, pipeline=pipeline), f"pipeline of {num_ranks}{suffix}")


def _stages_per_rank(schedule: Schedule) -> int:
    """Return the smallest number of pipeline stages per rank that this schedule allows."""
    return PIPELINE_SCHEDULES[schedule].stages_per_rank[0]


def _microbatches(recipe: Recipe, num_ranks: int, size: int, fillings: Sequence[int]) -> list[int]:
    """Return the numbers of microbatches to try for a pipeline of `num_ranks` ranks. `size`: number of copies of the
    pipeline, which divide the batch. `fillings`: wanted numbers of microbatches per rank.

    For each filling f, this is the smallest possible number n with f <= n / num_ranks < 2 f. If no filling has one, it
    is the largest possible number up to `num_ranks`. If the recipe sets `microbatch_size`, only one number is
    possible."""
    training = recipe.training
    known = (size, training.microbatch_size or 1, training.gradient_accumulation_steps or 1)
    share, rest = divmod(training.global_batch_size, prod(known))
    if rest or not share:
        return [num_ranks]  # `dtrain lint` reports that the batch does not divide evenly
    if training.microbatch_size is not None:
        return [share]
    wanted = [divisors(share, filling * num_ranks, 2 * filling * num_ranks - 1)[:1] for filling in fillings]
    return [each for found in wanted for each in found] or divisors(share, 1, num_ranks)[-1:]


def divisors(number: int, least: int, most: int) -> list[int]:
    """Return the divisors of `number` that are at least `least` and at most `most`. Numbers outside this range are not
    tried, because `number` may be large."""
    return [each for each in range(least, min(number, most) + 1) if number % each == 0]
