"""Prediction of a plan's peak memory: for each pipeline position, one rank runs a step alone, on tensors without
memory.

To save time, long chains of equal blocks and many microbatches are replaced by a few, and the memory is extrapolated
(`extrapolate.py`). If the trace of a pipeline would still take more than a few seconds, its memory is estimated
(`planner/estimate/memory.py`), with factors from a trace on one device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import ceil, prod
from typing import TYPE_CHECKING, Any, Literal

import torch

from declarative_train.components.pipeline_schedules import PIPELINE_SCHEDULES
from declarative_train.plan.predictions import MemoryPlan
from declarative_train.planner.estimate.memory import MemoryScale, bytes_of_copies
from declarative_train.planner.estimate.shortened import CopyChain, fewer_ranks, find_chains, kinds_of_rank, shorten
from declarative_train.planner.estimate.tracing import TraceResult
from declarative_train.planner.footprint.extrapolate import FEW, MemoryTrace, UnevenError, extrapolate, memory_trace
from declarative_train.planner.footprint.fake_rank import fake_step
from declarative_train.planner.footprint.forked_process import ChildError, in_a_line, in_children, usable_cores
from declarative_train.planner.footprint.live_bytes import (
    ACTIVATIONS,
    CLASSES,
    DATA,
    GRADIENTS,
    LOSS,
    OPTIMIZER,
    PARAMETERS,
    WHOLE,
)

if TYPE_CHECKING:
    from declarative_train.graph.graph import Graph
    from declarative_train.plan.layout import LayoutPlan
    from declarative_train.plan.plan import Plan
    from declarative_train.planner.estimate.model import ModelFacts

MOST_CALLS = 2500  # calls of layers and expressions, in all traces of a plan together
START_S, CALL_S = 0.5, 2e-3  # seconds for a trace, and for each call of a layer in it
MOST_RUNS = 4
MOST_AT_ONCE = 8  # processes that trace at the same time
EVEN = 0.002  # allowed relative difference between two steps of the same size
LONG = 2 * FEW + 2  # copies of a chain from which on tracing two short chains is faster

Found = dict[int, Any]  # pipeline position -> live bytes at each moment, a float array (operations, kinds)


class TooLongError(Exception):
    """Error: tracing a step would take too long. The message says how many calls of layers the step has."""


class Forecast:
    """Tracer (`planner/estimate/tracing.py`) that runs the step of a plan on fake tensors. It caches its traces, so
    that candidates of `auto` with the same step share one."""

    def __init__(self) -> None:
        self._tried: list[tuple[Plan, bool, Found]] = []
        self.spent_s = 0.0

    def memory(self, plan: Plan) -> TraceResult:
        try:
            small, is_begun = _prepare(plan)
            found = self._trace(small, is_begun)
        except Exception as error:  # of a plugin's code, or of an operation that needs values
            return TraceResult((), str(error) if isinstance(error, ChildError | TooLongError) else in_a_line(error))
        return TraceResult(tuple(_row(plan, small, place, moments.copy()) for place, moments in found.items()))

    def scale(self, plan: Plan, model: ModelFacts) -> MemoryScale | None:
        """Return the MemoryScale of `model`, measured in a trace of `plan`; None if the trace failed. `plan`: a plan of
        this model with fsdp or on one device. The half-precision copies of the parameters that a run on one device
        makes are not counted."""
        try:
            moments = self._trace(*_prepare(plan))[0]
        except Exception:
            return None
        copies = bytes_of_copies(plan, model)
        moving = moments[:, ACTIVATIONS] + moments[:, LOSS]
        peak = int(moving.argmax())
        loss = moments[peak, LOSS]
        before = moments[: max(1, int((moments[:, LOSS] > 0).argmax())), ACTIVATIONS]
        kept = max(0.0, float(before[-1]) - copies)
        rows, elements = plan.batch.microbatch_size, sum(node.kept for node in model.nodes.values())
        working = max(0.0, float(moving[peak] - loss) - kept - copies)
        return MemoryScale(kept / rows / max(1, elements), working / rows, float(loss) / rows)

    def _trace(self, small: Plan, is_begun: bool) -> Found:
        """Trace the step of a small plan, or take its trace from the cache. Return a dict from pipeline position to the
        live bytes at each moment. `is_begun`: gradients exist from the beginning of the step. Raises the errors of the
        trace."""
        key = _without_irrelevant(small)
        self.spent_s += START_S + _all_calls(small) * CALL_S
        for known, was_begun, found in self._tried:
            if known == key and was_begun == is_begun:
                return found
        if small.layout.is_one_process:
            found = _trace_kinds(small, is_begun, list(kinds_of_rank(small.layout)))
        else:
            # imported here, so that children and ranks that are forked later need not import it again
            from declarative_train.engine.axes import pipeline, shard  # noqa: F401

            with _one_thread():
                parts = _split_positions(small.layout)
                is_split = usable_cores() > len(parts)
                shares = [partial(_trace_kinds, small, is_begun, places, is_split) for places in parts]
                found = dict(sorted(item for share in in_children(shares) for item in share.items()))
        self._tried.append((key, is_begun, found))
        return found


def _without_irrelevant(plan: Plan) -> Plan:
    """Return the plan without values that do not affect a step, such as its name. Plans with the same step are then
    equal, and share an entry of the cache."""
    layout = replace(plan.layout, hardware=None)
    nothing: dict[str, Any] = {"meta": {}, "settings": {}, "memory": (), "estimate": None, "choice": None}
    nothing |= {"overrides": (), "recipe": {}, "files": (), "not_traced": ""}
    return replace(plan, name="", layout=layout, fingerprint="", identity="", **nothing)


def _split_positions(layout: LayoutPlan) -> list[list[int]]:
    """Divide the pipeline positions among processes, each of which will trace a step at its positions. Return the
    positions of each process. There is at most one process for each core, and at most `MOST_AT_ONCE`, because each
    process needs memory."""
    places = list(kinds_of_rank(layout))
    number = min(usable_cores(), MOST_AT_ONCE, len(places))
    return [places[first::number] for first in range(number)]


def _trace_kinds(small: Plan, is_begun: bool, places: Sequence[int], is_split: bool = False) -> Found:
    """Trace one rank of each pipeline position in `places`, and return {position: live bytes at each moment of a step}.
    `is_begun`: gradients exist from the beginning of the step. `is_split`: traces may run in child processes."""
    few = _fewer_microbatches(small)
    if few:
        tried = [_trace_whole(each, is_begun, places, is_split) for each in few]
        found = extrapolate_microbatches(tried, _chunks(small), list(map(_chunks, few)))
        if found is not None:
            return found
    return _trace_whole(small, is_begun, places, is_split)


def _trace_whole(small: Plan, is_begun: bool, places: Sequence[int], is_split: bool) -> Found:
    runs = _long_runs(small)
    calls = _calls(small, runs) * (1 + len(runs))
    if calls > MOST_CALLS:
        raise TooLongError(f"{calls:,} calls of layers would take too long; the limit is {MOST_CALLS:,}")
    kinds = kinds_of_rank(small.layout)
    return {place: _moments(small, runs, kinds[place].rank, is_begun, is_split) for place in places}


def _all_calls(small: Plan) -> int:
    """Return the number of layer calls in all traces of a plan together; 0 if they are too many, so that nothing is
    traced."""
    every = [(each, _long_runs(each)) for each in _fewer_microbatches(small) or [small]]
    number = sum(_calls(plan, runs) * (1 + len(runs)) for plan, runs in every)
    return number if number <= MOST_CALLS * len(every) else 0


def _chunks(plan: Plan) -> int:
    return plan.batch.accumulation * plan.batch.num_microbatches


def _fewer_microbatches(plan: Plan) -> list[Plan]:
    """Return three copies of a pipeline's plan, with n, n + r and n + 2 r microbatches (r: ranks of the pipeline). The
    memory of the plan is extrapolated from traces of them, because it is constant or grows linearly with the
    microbatches.

    Return [] without a pipeline, if the schedule does not allow these numbers, or if their sum is not smaller than the
    plan's number of microbatches."""
    pipeline, ranks, number = plan.layout.pipeline, plan.layout.size("pipeline"), _chunks(plan)
    if pipeline is None:
        return []
    first = 2 * pipeline.num_stages + (number - 2 * pipeline.num_stages) % ranks
    numbers = [first, first + ranks, first + 2 * ranks]
    takes = PIPELINE_SCHEDULES[pipeline.schedule].takes
    if sum(numbers) >= number or not all(takes(each, ranks, pipeline.num_stages) for each in numbers):
        return []
    rows = plan.batch.microbatch_size * plan.batch.data_parallel_size
    return [
        replace(
            plan,
            batch=replace(plan.batch, accumulation=1, num_microbatches=each, global_batch_size=each * rows),
            layout=replace(plan.layout, pipeline=replace(pipeline, num_microbatches=each)),
        )
        for each in numbers
    ]


def extrapolate_microbatches(tried: list[Found], number: int, numbers: list[int]) -> Found | None:
    """Return the bytes in use at the memory peak of a step with `number` microbatches. They are extrapolated from three
    traces with fewer microbatches. Return None if memory does not grow linearly.

    The result is a dict from pipeline position to an array (1, kinds of memory). `tried`: the three traces. `numbers`:
    number of microbatches in each of them.
    """
    found: Found = {}
    for place in tried[0]:
        one, two, three = (moments[place][int(moments[place].sum(axis=1).argmax())] for moments in tried)
        off = abs(three - 2 * two + one)
        if (off > EVEN * max(1.0, three.sum())).any():
            return None
        more = (number - numbers[-1]) / (numbers[-1] - numbers[-2])
        found[place] = (three + more * (three - two))[None, :]
    return found


def _row(plan: Plan, small: Plan, place: int, moments: Any) -> MemoryPlan:
    if plan.layout.num_shards != small.layout.num_shards:
        share = _share(plan, plan.layout.num_shards) / _share(plan, small.layout.num_shards)
        moments[:, [PARAMETERS, GRADIENTS, OPTIMIZER]] *= share
    moments[:, DATA] *= plan.batch.accumulation / small.batch.accumulation
    found = moments[int(moments.sum(axis=1).argmax())]
    found[GRADIENTS] += found[WHOLE]
    name = "each device" if plan.layout.pipeline is None else f"pipeline rank {place}"
    sizes = dict(zip(CLASSES, map(round, found[: len(CLASSES)]), strict=True))
    return MemoryPlan(name=name, is_traced=True, **sizes)


def _moments(plan: Plan, runs: list[CopyChain], rank: int, is_begun: bool, is_split: bool) -> Any:
    """Return the live bytes after each operation of a step of rank `rank`, as a float array (operations, classes of
    memory). To save time, a model with fewer copies of its repeated blocks is traced, and the bytes are extrapolated.
    `runs`: the chains of copies to shorten. `is_begun`: gradients exist when the step begins. `is_split`: trace in
    child processes."""
    with _one_thread():
        if not runs:
            return _memory_trace(plan, rank, is_begun).bytes.astype(float)
        alike = plan.training.recomputation.every
        few = _few(plan, runs)
        known: dict[tuple[int, ...], MemoryTrace] = {}

        def trace(chains: Sequence[tuple[int, ...]]) -> list[MemoryTrace]:
            new = [kept for kept in dict.fromkeys(chains) if kept not in known]
            works = [partial(_memory_trace, shorten(plan, runs, kept), rank, is_begun) for kept in new]
            known.update(zip(new, in_children(works) if is_split else [work() for work in works], strict=True))
            return [known[kept] for kept in chains]

        # if the first and the last copy differ from the middle ones, two middle ones are needed
        for kept in (few, [number + alike for number in few]):
            left = [len(run.paths) - number for run, number in zip(runs, kept, strict=True)]
            if min(left) < 2 * alike:
                break
            one_more = [tuple(n + alike * (at == other) for other, n in enumerate(kept)) for at in range(len(runs))]
            base, *longer = trace([tuple(kept), *one_more])
            try:
                return extrapolate(base, longer, [FEW + number // alike for number in left])
            except UnevenError:
                continue
        return _memory_trace(plan, rank, is_begun).bytes.astype(float)


def _memory_trace(plan: Plan, rank: int, is_begun: bool) -> MemoryTrace:
    return memory_trace(fake_step(plan, rank, is_begun=is_begun))


def _prepare(plan: Plan) -> tuple[Plan, bool]:
    """Return a smaller plan, which is faster to trace, and whether gradients of earlier accumulation steps exist when
    its step begins.

    The smaller plan has few ranks. Without a pipeline, it has only the last accumulation step if all of them do the
    same work, otherwise at most two. With a pipeline, it has all of them.
    """
    batch, is_begun = plan.batch, False
    if plan.layout.pipeline is None:
        is_begun = batch.accumulation > 1 and _are_chunks_alike(plan.layout)
        batch = replace(batch, accumulation=1 if is_begun else min(2, batch.accumulation))
    layout = replace(plan.layout, device=_device(plan.layout))
    return fewer_ranks(replace(plan, batch=batch, weights=(), layout=layout)), is_begun


def _device(layout: LayoutPlan) -> Literal["cuda", "cpu", "mps"]:
    if layout.device == "auto":
        there = layout.hardware is None and torch.cuda.device_count() > 0
        return "cuda" if there or layout.hardware not in (None, "cpu") else "cpu"
    return layout.device


def _are_chunks_alike(layout: LayoutPlan) -> bool:
    """Return whether all chunks (accumulation steps) of a training step do the same work. They do not if only the last
    chunk sums gradients over ranks."""
    if layout.sharding is not None:
        return not layout.sharding.keeps_gradients and not layout.has("replicate")
    return layout.is_one_process and not layout.scatters


def _few(plan: Plan, runs: list[CopyChain]) -> list[int]:
    """Return how many copies of each chain of blocks in `runs` to trace.

    If every n-th block is recomputed, n consecutive copies are a group; else each copy is one. All groups need equal
    memory, so only `FEW` are traced, and also the copies that are left over when the chain is divided into groups.
    """
    alike = plan.training.recomputation.every
    return [FEW * alike + len(run.paths) % alike for run in runs]


def _long_runs(plan: Plan) -> list[CopyChain]:
    """Return the longest chains of equal blocks in a plan, the longest first. Only a few are returned, because each
    costs a trace."""
    runs = sorted(find_chains(plan, LONG * plan.training.recomputation.every), key=lambda run: -len(run.paths))
    return runs[:MOST_RUNS]


def _calls(plan: Plan, runs: list[CopyChain]) -> int:
    return _leaves(shorten(plan, runs, _few(plan, runs)).graph) * _chunks(plan)


def _leaves(graph: Graph) -> int:
    return sum(1 if node.graph is None else _leaves(node.graph) for node in graph.nodes)


def _share(plan: Plan, shards: int) -> float:
    """Return the largest number of parameter elements that one of `shards` ranks has. It is that of the first rank,
    because `fully_shard` divides the first dimension of each tensor and rounds up."""
    return float(
        sum(
            ceil(item.shape[0] / shards) * prod(item.shape[1:]) if item.shape else 1
            for item in plan.parameters
            if item.tie is None
        )
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one torch thread within the `with` block, because a process with a thread pool must not fork ranks. At the
    end, restore the number of threads and the random generators."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)
