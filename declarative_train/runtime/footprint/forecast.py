"""What a plan will need of memory: its own step, tried by one rank of each kind on tensors without memory.

Of long chains of equal blocks two short ones are tried and carried on (`extrapolate.py`), of very many ranks a few.
Small plans are tried on real tensors, but for pipelines, which is sooner done than importing what fake ones need. A
pipeline of so many microbatches that trying it would take longer than a few seconds is left to
`plan/estimate/memory.py`, on the scale of the same model on one device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import ceil, prod
from typing import TYPE_CHECKING, Any

import torch

from declarative_train.graph.cost import is_recurrent
from declarative_train.plan.estimate.memory import Scale
from declarative_train.plan.estimate.shortened import Run, fewer_ranks, kinds_of_rank, runs_of, shortened
from declarative_train.plan.predicted import MemoryPlan
from declarative_train.runtime.footprint.child import in_child
from declarative_train.runtime.footprint.extrapolate import FEW, UnevenError, course_of, extrapolated
from declarative_train.runtime.footprint.live_bytes import ACTIVATIONS, CLASSES, GRADIENTS, LOSS, OPTIMIZER, PARAMETERS
from declarative_train.runtime.footprint.pretend import pretended_step

if TYPE_CHECKING:
    from declarative_train.graph.graph import Graph
    from declarative_train.plan.estimate.model import ModelFacts
    from declarative_train.plan.plan import Plan

MOST_CALLS = 2500  # of layers and expressions, in all tries together: about 2 ms each
SMALL_PARAMETERS, SMALL_WORK = 1_000_000, 8_000_000  # elements
RECURRENT_FACTOR = 30  # how much larger a plan with lstm or gru may be: on tensors without memory it comes out too low
MOST_RUNS = 4
LONG = 2 * FEW + 2  # copies from which on two short chains are sooner tried than the whole one


class Forecast:
    """The `Tracer` of `plan.compile`."""

    def memory(self, plan: Plan) -> tuple[MemoryPlan, ...]:
        """A row for each kind of device, none where the plan cannot be tried."""
        if plan.layout.is_one_process:
            return self._rows(plan)

        with _one_thread():
            return in_child(lambda: self._rows(plan)) or ()

    def _rows(self, plan: Plan) -> tuple[MemoryPlan, ...]:
        try:
            small = _ready(plan)
            runs = _long_runs(small)
            kinds = kinds_of_rank(small.layout)
            if _calls(small, runs) * (1 + len(runs)) > MOST_CALLS:
                return ()
            return tuple(self._row(plan, small, runs, place, rank.rank) for place, rank in kinds.items())
        except Exception:  # a plugin's code, or what torch cannot do without values
            return ()

    def scale(self, plan: Plan, model: ModelFacts) -> Scale | None:
        """`plan` is for one device."""
        try:
            small = _ready(plan)
            moments = _moments(small, _long_runs(small), 0)
        except Exception:
            return None
        moving = moments[:, ACTIVATIONS] + moments[:, LOSS]
        peak = int(moving.argmax())
        loss = moments[peak, LOSS]
        before = moments[: max(1, int((moments[:, LOSS] > 0).argmax())), ACTIVATIONS]
        kept = float(before[-1])
        rows, elements = plan.batch.microbatch_size, sum(node.kept for node in model.nodes.values())
        working = max(0.0, float(moving[peak] - loss) - kept)
        return Scale(kept / rows / max(1, elements), working / rows, float(loss) / rows)

    def _row(self, plan: Plan, small: Plan, runs: list[Run], place: int, rank: int) -> MemoryPlan:
        moments = _moments(small, runs, rank)
        if plan.layout.num_shards != small.layout.num_shards:
            share = _share(plan, plan.layout.num_shards) / _share(plan, small.layout.num_shards)
            moments[:, [PARAMETERS, GRADIENTS, OPTIMIZER]] *= share
        found = moments[int(moments.sum(axis=1).argmax())]
        name = "each device" if plan.layout.pipeline is None else f"pipeline rank {place}"
        sizes = dict(zip(CLASSES, map(round, found), strict=True))
        is_traced = _is_small(plan) or not is_recurrent(plan.graph.nodes)
        return MemoryPlan(name=name, is_traced=is_traced, **sizes)


def _moments(plan: Plan, runs: list[Run], rank: int) -> Any:
    """(operations, classes) of a step of the whole plan, as floats."""
    is_fake = not _is_small(plan)
    with _one_thread():
        if not runs:
            return _course(plan, rank, is_fake).bytes.astype(float)
        base = _course(shortened(plan, runs, [FEW] * len(runs)), rank, is_fake)
        longer = [
            _course(shortened(plan, runs, [FEW + (at == other) for other in range(len(runs))]), rank, is_fake)
            for at in range(len(runs))
        ]
        try:
            return extrapolated(base, longer, [len(run.paths) for run in runs])
        except UnevenError:
            return _course(plan, rank, is_fake).bytes.astype(float)


def _course(plan: Plan, rank: int, is_fake: bool) -> Any:
    if not is_fake:
        try:
            return course_of(pretended_step(plan, rank, is_fake=False))
        except Exception:  # numbers that nobody sent
            pass
    return course_of(pretended_step(plan, rank))


def _ready(plan: Plan) -> Plan:
    """Eager, with two chunks at most (the second finds the gradients of the first), on few ranks."""
    batch = replace(plan.batch, accumulation=min(2, plan.batch.accumulation))
    if plan.layout.pipeline is not None:
        batch = plan.batch
    return fewer_ranks(replace(plan, batch=batch, weights=(), training=replace(plan.training, compile=False)))


def _long_runs(plan: Plan) -> list[Run]:
    """In the order of their copies, the longest first: of a few, since each costs a try."""
    runs = sorted(runs_of(plan, LONG), key=lambda run: -len(run.paths))
    if _is_small(plan):
        return []
    return runs[:MOST_RUNS]


def _calls(plan: Plan, runs: list[Run]) -> int:
    few = shortened(plan, runs, [FEW] * len(runs))
    chunks = plan.batch.accumulation * plan.batch.num_microbatches
    return _leaves(few.graph) * chunks


def _leaves(graph: Graph) -> int:
    return sum(1 if node.graph is None else _leaves(node.graph) for node in graph.nodes)


def _is_small(plan: Plan) -> bool:
    """And no pipeline: what pretended ranks send has no values, and its stages tell each other sizes of memory."""
    if plan.layout.pipeline is not None:
        return False
    from declarative_train.graph.cost import activations

    held = sum(item.num_elements for item in plan.parameters)
    given = sum(map(activations, plan.graph.nodes)) * plan.batch.global_batch_size
    factor = RECURRENT_FACTOR if is_recurrent(plan.graph.nodes) else 1
    return held <= SMALL_PARAMETERS * factor and given <= SMALL_WORK * factor


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
