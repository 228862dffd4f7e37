"""What a plan will need of memory: its own step, tried by one rank of each kind on tensors without memory.

Of long chains of equal blocks two short ones are tried and carried on (`extrapolate.py`), of very many ranks a few, of
many microbatches three smaller numbers.
Where a step is sooner done than what fake tensors need is imported (1.3 s of the processor) it is tried on real ones. A
pipeline of so many microbatches that trying it would take longer than a few seconds is left to
`planner/estimate/memory.py`, on the scale of the same model on one device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import ceil, prod
from typing import TYPE_CHECKING, Any, Literal

import torch

from declarative_train.components.pipeline_schedules import PIPELINE_SCHEDULES
from declarative_train.core.machine import num_cores
from declarative_train.engine.engine import slots_of
from declarative_train.plan.predicted import MemoryPlan
from declarative_train.planner.estimate.memory import Scale, copied_bytes
from declarative_train.planner.estimate.shortened import Run, fewer_ranks, kinds_of_rank, runs_of, shortened
from declarative_train.planner.estimate.tracing import Traced
from declarative_train.planner.footprint.child import ChildError, in_a_line, in_children
from declarative_train.planner.footprint.extrapolate import FEW, UnevenError, course_of, extrapolated
from declarative_train.planner.footprint.fake_rank import pretended_step
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

MOST_CALLS = 2500  # of layers and expressions, in all tries together
START_S, CALL_S = 0.5, 2e-3  # of a try, and of a call in it
SMALL_PARAMETERS, SMALL_WORK = 1_000_000, 8_000_000  # elements
CPU_PARAMETERS, CPU_WORK = 8_000_000, 64_000_000  # of a run on the CPU, which takes as much itself
CPU_OPERATIONS = {"fp32": 16e9, "fp64": 8e9}  # in a step of one rank: some tenths of a second of one core
CPU_CALLS = 1000  # of layers and expressions
SLOW_OPERATIONS = 2e9  # in half precision, which many processors emulate
MOST_RUNS = 4
MOST_AT_ONCE = 8  # processes that try
EVEN = 0.002  # of all: what may be between two steps of the same size
LONG = 2 * FEW + 2  # copies from which on two short chains are sooner tried than the whole one

Found = dict[int, Any]  # (operations, kinds) of a step, as floats, by the place in the pipeline


class TooLongError(Exception):
    """Says how long."""


class Forecast:
    """The `Tracer` of `plan.compile`. What it has tried it does not try again: the candidates of `auto` share it.
    `meanwhile`: what can be done while other processes try."""

    def __init__(self, meanwhile: Callable[[], object] | None = None) -> None:
        self._meanwhile = meanwhile
        self._tried: list[tuple[Plan, bool, Found]] = []
        self.spent_s = 0.0

    def memory(self, plan: Plan) -> Traced:
        try:
            small, is_begun = _ready(plan)
            found = self._found(small, is_begun)
        except Exception as error:  # a plugin's code, or what torch cannot do without values
            return Traced((), str(error) if isinstance(error, ChildError | TooLongError) else in_a_line(error))
        return Traced(tuple(_row(plan, small, place, moments.copy()) for place, moments in found.items()))

    def scale(self, plan: Plan, model: ModelFacts) -> Scale | None:
        """`plan` is sharded, or for one device: then copies in half precision are taken off."""
        try:
            moments = self._found(*_ready(plan))[0]
        except Exception:
            return None
        copies = copied_bytes(plan, model)
        moving = moments[:, ACTIVATIONS] + moments[:, LOSS]
        peak = int(moving.argmax())
        loss = moments[peak, LOSS]
        before = moments[: max(1, int((moments[:, LOSS] > 0).argmax())), ACTIVATIONS]
        kept = max(0.0, float(before[-1]) - copies)
        rows, elements = plan.batch.microbatch_size, sum(node.kept for node in model.nodes.values())
        working = max(0.0, float(moving[peak] - loss) - kept - copies)
        return Scale(kept / rows / max(1, elements), working / rows, float(loss) / rows)

    def _found(self, small: Plan, is_begun: bool) -> Found:
        """Raises what its tries raise."""
        key = _deciding(small)
        self.spent_s += START_S + _all_calls(small) * CALL_S
        for known, was_begun, found in self._tried:
            if known == key and was_begun == is_begun:
                return found
        if small.layout.is_one_process:
            found = _every_kind(small, is_begun, list(kinds_of_rank(small.layout)))
        else:
            _import_for_ranks(small)
            with _one_thread():
                shares = [partial(_every_kind, small, is_begun, places) for places in _shared_out(small.layout)]
                found = dict(sorted(item for share in in_children(shares, self._meanwhile) for item in share.items()))
        self._tried.append((key, is_begun, found))
        return found


def _import_for_ranks(plan: Plan) -> None:
    """More than a second's work, which the child would do for itself, and ranks that are forked afterwards again."""
    if plan.layout.is_sharded or not _is_small(plan):
        import torch._dynamo  # noqa: F401
    if plan.layout.is_sharded:
        import declarative_train.engine.axes.shard
    if plan.layout.pipeline is not None:
        import declarative_train.engine.axes.pipeline  # noqa: F401


def _deciding(plan: Plan) -> Plan:
    """Without what a step does not depend on."""
    layout = replace(plan.layout, hardware=None)
    nothing: dict[str, Any] = {"meta": {}, "settings": {}, "memory": (), "estimate": None, "choice": None}
    return replace(plan, name="", layout=layout, fingerprint="", identity="", **nothing)


def _shared_out(layout: LayoutPlan) -> list[list[int]]:
    """The places of the pipeline, for so many processes as there are cores, but few: each takes memory of its own."""
    places = list(kinds_of_rank(layout))
    number = min(num_cores(), MOST_AT_ONCE, len(places))
    return [places[first::number] for first in range(number)]


def _every_kind(small: Plan, is_begun: bool, places: Sequence[int]) -> Found:
    """Of the kinds of rank at these places of the pipeline."""
    few = _fewer_microbatches(small)
    if few:
        tried = [_each_kind(each, is_begun, places) for each in few]
        found = carried_on(tried, _chunks(small), list(map(_chunks, few)))
        if found is not None:
            return found
    return _each_kind(small, is_begun, places)


def _each_kind(small: Plan, is_begun: bool, places: Sequence[int]) -> Found:
    runs = _long_runs(small)
    calls = _calls(small, runs) * (1 + len(runs))
    if calls > MOST_CALLS:
        raise TooLongError(f"{calls:,} calls of layers would take too long, {MOST_CALLS:,} are tried at most")
    kinds = kinds_of_rank(small.layout)
    return {place: _moments(small, runs, kinds[place].rank, is_begun) for place in places}


def _all_calls(small: Plan) -> int:
    """Of `_every_kind`; none where that is too many."""
    every = [(each, _long_runs(each)) for each in _fewer_microbatches(small) or [small]]
    number = sum(_calls(plan, runs) * (1 + len(runs)) for plan, runs in every)
    return number if number <= MOST_CALLS * len(every) else 0


def _chunks(plan: Plan) -> int:
    return plan.batch.accumulation * plan.batch.num_microbatches


def _fewer_microbatches(plan: Plan) -> list[Plan]:
    """Three plans with fewer, so many more each time as the pipeline has ranks; none where that would not be less work.
    Once it is full a schedule goes round: what it holds grows evenly, or not at all."""
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


def carried_on(tried: list[Found], number: int, numbers: list[int]) -> Found | None:
    """The peak of each place with `number` microbatches, of three tries with fewer; None where it does not grow
    evenly."""
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


def _moments(plan: Plan, runs: list[Run], rank: int, is_begun: bool) -> Any:
    """(operations, kinds) of a step of the whole plan, as floats."""
    is_fake = not _is_small(plan)
    with _one_thread():
        if not runs:
            return _course(plan, rank, is_begun, is_fake).bytes.astype(float)
        alike = plan.training.recomputation.every
        few = _few(plan, runs)
        # where neither the first copy nor the last is as those in the middle, two of these have to be there
        for kept in (few, [number + alike for number in few]):
            left = [len(run.paths) - number for run, number in zip(runs, kept, strict=True)]
            if min(left) < 2 * alike:
                break
            base = _course(shortened(plan, runs, kept), rank, is_begun, is_fake)
            more = [[number + alike * (at == other) for other, number in enumerate(kept)] for at in range(len(runs))]
            longer = [_course(shortened(plan, runs, each), rank, is_begun, is_fake) for each in more]
            try:
                return extrapolated(base, longer, [FEW + number // alike for number in left])
            except UnevenError:
                continue
        return _course(plan, rank, is_begun, is_fake).bytes.astype(float)


def _course(plan: Plan, rank: int, is_begun: bool, is_fake: bool) -> Any:
    if not is_fake:
        try:
            return course_of(pretended_step(plan, rank, is_begun=is_begun, is_fake=False))
        except Exception:  # numbers that nobody sent
            pass
    return course_of(pretended_step(plan, rank, is_begun=is_begun))


def _ready(plan: Plan) -> tuple[Plan, bool]:
    """Eager, on few ranks, with two chunks at most: the second finds the gradients of the first. Where all chunks are
    alike but for that, one is enough, and gradients are there from the beginning (True)."""
    batch, is_begun = plan.batch, False
    if plan.layout.pipeline is None:
        is_begun = batch.accumulation > 1 and _are_chunks_alike(plan.layout)
        batch = replace(batch, accumulation=1 if is_begun else min(2, batch.accumulation))
    layout = replace(plan.layout, device=_device(plan.layout))
    training = replace(plan.training, compile=False)
    return fewer_ranks(replace(plan, batch=batch, weights=(), training=training, layout=layout)), is_begun


def _device(layout: LayoutPlan) -> Literal["cuda", "cpu", "mps"]:
    """What the ranks will use."""
    if layout.device == "auto":
        there = layout.hardware is None and torch.cuda.device_count() > 0
        return "cuda" if there or layout.hardware not in (None, "cpu") else "cpu"
    return layout.device


def _are_chunks_alike(layout: LayoutPlan) -> bool:
    """Nothing is left undone between them, as it is where gradients are kept whole or shared by replicas at the end."""
    if layout.sharding is not None:
        return not layout.sharding.keeps_gradients and not layout.has("replicate")
    return layout.is_one_process and not layout.scatters


def _few(plan: Plan, runs: list[Run]) -> list[int]:
    """Copies that are tried of each run. Where one of several blocks is computed again, so many go together."""
    alike = plan.training.recomputation.every
    return [FEW * alike + len(run.paths) % alike for run in runs]


def _long_runs(plan: Plan) -> list[Run]:
    """In the order of their copies, the longest first: of a few, since each costs a try."""
    runs = sorted(runs_of(plan, LONG * plan.training.recomputation.every), key=lambda run: -len(run.paths))
    if _is_small(plan):
        return []
    return runs[:MOST_RUNS]


def _calls(plan: Plan, runs: list[Run]) -> int:
    return _leaves(shortened(plan, runs, _few(plan, runs)).graph) * _chunks(plan)


def _leaves(graph: Graph) -> int:
    return sum(1 if node.graph is None else _leaves(node.graph) for node in graph.nodes)


def _is_small(plan: Plan) -> bool:
    """Whether a step on real tensors is sooner done. Pipelines of GPUs are never tried so."""
    from declarative_train.graph.cost import activations

    held = sum(item.num_elements for item in plan.parameters)
    each = sum(map(activations, plan.graph.nodes))
    if plan.layout.pipeline is None and held <= SMALL_PARAMETERS and each * plan.batch.global_batch_size <= SMALL_WORK:
        return True
    if plan.layout.device != "cpu" or _leaves(plan.graph) * _chunks(plan) > CPU_CALLS:
        return False
    rows, most = slots_of(plan).microbatch_size, CPU_OPERATIONS.get(plan.training.precision, SLOW_OPERATIONS)
    operations = (plan.flops.forward + plan.flops.backward + plan.flops.recomputed) * rows * _chunks(plan)
    at_once = rows * plan.batch.num_microbatches  # a pipeline may hold those of all
    return held <= CPU_PARAMETERS and each * at_once <= CPU_WORK and operations <= most


def _share(plan: Plan, shards: int) -> float:
    """Elements of the first rank: `fully_shard` cuts a tensor's first dimension, and rounds up."""
    return float(
        sum(
            ceil(item.shape[0] / shards) * prod(item.shape[1:]) if item.shape else 1
            for item in plan.parameters
            if item.tie is None
        )
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """A process with a pool of threads must not fork ranks. The caller's generators stay as they are."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)
