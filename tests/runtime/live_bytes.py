"""Live bytes of the real ranks of a plan, by class: over gloo, with the real engine on the real batches.

    found = live_bytes(plan)
    found[0].total                  the peak of rank 0, in bytes
    found[0].by_class["loss"]       what of it was the loss's

Counted as `runtime/footprint/live_bytes.py` says, in the last of a few steps, when all that a run remembers is there.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from declarative_train.data.batches import TrainingBatches
from declarative_train.data.sets import open_sets
from declarative_train.data.slots import locate
from declarative_train.plan.plan import Plan
from declarative_train.runtime.engine import Engine
from declarative_train.runtime.footprint import watched_step
from declarative_train.runtime.footprint.footprint import Footprint, footprint_of
from declarative_train.runtime.footprint.live_bytes import LiveBytes
from declarative_train.runtime.processes import (
    announce,
    join_process_group,
    launch_config,
    silence_loggers,
    wait_for_forks,
)
from declarative_train.runtime.rank import default_dtype, slots_of

NUM_STEPS = 2
_ALIVE: list[object] = []


def live_bytes(plan: Plan, *, num_steps: int = NUM_STEPS) -> list[Footprint]:
    """Of each rank, in their order."""
    if plan.layout.is_one_process:
        return [_here(plan, num_steps)]
    torch.set_num_threads(1)
    import_module("torch._dynamo")  # before the fork, as the launcher does
    from torch.distributed.launcher.api import elastic_launch

    silence_loggers()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with TemporaryDirectory() as scratch:
        config = launch_config(len(plan.layout.ranks), Path(scratch), "fork")
        found = elastic_launch(config, _as_rank)(plan, num_steps, scratch)
    return [found[rank] for rank in sorted(found)]


def _as_rank(plan: Plan, num_steps: int, scratch: str) -> Footprint:
    torch.set_num_threads(1)
    announce(Path(scratch), int(os.environ["RANK"]))
    wait_for_forks(Path(scratch), int(os.environ["WORLD_SIZE"]))
    join_process_group(torch.device("cpu"))
    return _here(plan, num_steps)


def _here(plan: Plan, num_steps: int) -> Footprint:
    with default_dtype(plan):
        engine = Engine(plan, torch.device("cpu"))
        if not plan.layout.is_one_process:
            _ALIVE.append(engine)
        batches = TrainingBatches(plan.data, slots_of(plan), engine.dp_rank, open_sets(plan.data))
        num_samples = plan.data.set("training").num_samples
        for number in range(1, num_steps + 1):
            num_rows = locate(number, plan.batch, num_samples).size
            mine = batches.step(number)
            if number < num_steps:
                engine.step(number, mine, num_rows=num_rows, lr_factor=1.0, measure=False)
                continue
            engine.optimizer.zero_grad()  # of the step before, which the step lets go first of all
            live = LiveBytes()
            watched_step.step(engine, live, number, mine, num_rows=num_rows, lr_factor=1.0, measure=False)
    return footprint_of(live)
