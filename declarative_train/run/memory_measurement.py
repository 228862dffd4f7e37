"""Measurement of the memory of one early step, which is compared with the plan's prediction."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from declarative_train.planner.estimate.shortened import kinds_of_rank
from declarative_train.run.event import MemoryMeasured

if TYPE_CHECKING:
    from declarative_train.data.batch import Batch
    from declarative_train.engine.engine import Engine, StepResult
    from declarative_train.plan.plan import Plan

NUMBER = 2  # which step of the session is measured: an early one in which the optimizer has its state
LIVE, ALLOCATED = "live tensors", "allocated on the GPU"


class MemoryMeasurement:
    """Measurement of the memory of one early step. The training loop runs every step through the method `step`. On a
    GPU it uses the statistics of torch's allocator. On the CPU it counts live tensors, which takes a few milliseconds;
    a compiled step is not measured there."""

    def __init__(self, plan: Plan, engine: Engine, first_step: int, last_step: int) -> None:
        self._plan, self._engine = plan, engine
        on_gpu = engine.device.type == "cuda" if plan.memory else False
        is_able = bool(plan.memory) and (on_gpu or not plan.training.compile)
        self._at = min(first_step + NUMBER - 1, last_step) if is_able else None
        self._how = ALLOCATED if on_gpu else LIVE
        self._peak = 0

    def step(self, number: int, batches: Sequence[Batch], **more: Any) -> StepResult:
        if number == self._at and self._how == ALLOCATED:
            # exclude allocations from before the step: initial values, and cuDNN's trial of kernels
            torch.cuda.reset_peak_memory_stats(self._engine.device)
        if number != self._at or self._how == ALLOCATED:
            return self._engine.step(number, batches, **more)
        from declarative_train.planner.footprint.live_bytes import LiveBytes
        from declarative_train.planner.footprint.memory_observer import step

        live = LiveBytes()
        result: StepResult = step(self._engine, live, number, batches, **more)
        self._peak = live.peak
        return result

    def report(self, number: int) -> MemoryMeasured | None:
        """Return an event with the peaks of all ranks after the measured step; None after any other step. All ranks
        must call this after the same steps."""
        if number != self._at:
            return None
        engine = self._engine
        if self._how == ALLOCATED:
            self._peak = int(torch.cuda.max_memory_allocated(engine.device))
        mine = torch.tensor([self._peak], dtype=torch.int64, device=engine.device)
        measured = engine.world.concatenate(mine).tolist()
        return MemoryMeasured(number, peak_bytes_per_rank(self._plan), measured, self._how, time.time())


def bytes_without_parameters(plan: Plan, rank: int) -> int:
    """Return the predicted peak memory of a step on a rank, without the parameters, in bytes. Return 0 if the plan has
    no prediction. The training set is put on the device, next to the parameters, only if this much memory stays free.
    """
    if not plan.memory:
        return 0
    stage = plan.layout.ranks[rank].coordinates.get("pipeline", 0)
    row = dict(zip(kinds_of_rank(plan.layout), plan.memory, strict=True))[stage]
    return row.of_step - row.parameters


def replace_set_bytes(plan: Plan, bytes_on_device: int) -> Plan:
    """Return the plan with `bytes_on_device`, the bytes that the training set really uses on the device, instead of the
    estimate."""
    rows = tuple(replace(row, held=bytes_on_device) for row in plan.memory)
    estimate = plan.estimate
    if estimate is not None and plan.memory:
        estimate = replace(estimate, memory_bytes=max(row.total for row in rows))
    return replace(plan, memory=rows, estimate=estimate)


def peak_bytes_per_rank(plan: Plan) -> list[int]:
    rows = dict(zip(kinds_of_rank(plan.layout), plan.memory, strict=True))
    return [rows[rank.coordinates.get("pipeline", 0)].total for rank in plan.layout.ranks]
