"""Live bytes of the real ranks of a plan, by class: over gloo, with the real engine on the real batches.

    found = live_bytes(plan)
    found[0].total                  the peak of rank 0, in bytes
    found[0].by_class["loss"]       what of it was the loss's

Counted as `planner/footprint/live_bytes.py` says, in the last of a few steps, when all that a run remembers is there.

gloo computes in threads of its own, which hold what a collective carries until they come to run again after it is done:
on a busy machine some microseconds become milliseconds, and then it is still counted in the operations that follow.
This can only add, so the step is counted several times and the least counts.
"""

from __future__ import annotations

from declarative_train.data.order import locate
from declarative_train.data.rank_batches import TrainingBatches
from declarative_train.data.tensor_sets import open_sets
from declarative_train.engine.engine import get_process_batch
from declarative_train.plan.plan import Plan
from declarative_train.planner.footprint import memory_observer
from declarative_train.planner.footprint.fake_rank import keeps_buckets
from declarative_train.planner.footprint.live_bytes import LiveBytes
from tests.engine.on_ranks import kept_engine, on_ranks
from tests.planner.footprint import Footprint, footprint_of

NUM_STEPS = 2
NUM_COUNTED = 3  # of several ranks; a lone process has no such threads


def live_bytes(plan: Plan, *, num_steps: int = NUM_STEPS) -> list[Footprint]:
    """Of each rank, in their order."""
    return on_ranks(plan, _counted, plan, num_steps)


def _counted(plan: Plan, num_steps: int) -> Footprint:
    with kept_engine(plan) as engine:
        batches = TrainingBatches(plan.data, get_process_batch(plan), engine.dp_rank, open_sets(plan.data))
        num_samples = plan.data.set("training").num_samples
        for number in range(1, num_steps):
            num_rows = locate(number, plan.batch, num_samples).size
            engine.step(number, batches.step(number), num_rows=num_rows, lr_factor=1.0, measure=False)
        num_rows = locate(num_steps, plan.batch, num_samples).size
        found = []
        for _ in range(1 if plan.layout.is_one_process else NUM_COUNTED):
            if not keeps_buckets(plan):
                engine.optimizer.zero_grad()  # of the step before, which the step lets go first of all
            live, mine = LiveBytes(), batches.step(num_steps)
            memory_observer.step(engine, live, num_steps, mine, num_rows=num_rows, lr_factor=1.0, measure=False)
            found.append(footprint_of(live))
    return min(found, key=lambda each: each.total)
