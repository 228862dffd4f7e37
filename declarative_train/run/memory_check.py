"""What a run really needs of memory, held against its plan: counted in one early step."""

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

NUMBER = 2  # of the session's steps: the optimizer has its state, and it is early
LIVE, ALLOCATED = "live tensors", "allocated on the GPU"


class MemoryCheck:
    """Makes the steps. In one of them the memory is looked at: on the CPU the live tensors are counted (a few
    milliseconds, once), on a GPU torch has counted what it allocated. Compiled steps on the CPU cannot be counted."""

    def __init__(self, plan: Plan, engine: Engine, first_step: int, last_step: int) -> None:
        self._plan, self._engine = plan, engine
        on_gpu = engine.device.type == "cuda" if plan.memory else False
        is_able = bool(plan.memory) and (on_gpu or not plan.training.compile)
        self._at = min(first_step + NUMBER - 1, last_step) if is_able else None
        self._how = ALLOCATED if on_gpu else LIVE
        self._peak = 0

    def step(self, number: int, batches: Sequence[Batch], **more: Any) -> StepResult:
        if number == self._at and self._how == ALLOCATED:
            # what came before is none of a step: start values, and kernels that cuDNN tried
            torch.cuda.reset_peak_memory_stats(self._engine.device)
        if number != self._at or self._how == ALLOCATED:
            return self._engine.step(number, batches, **more)
        from declarative_train.planner.footprint.live_bytes import LiveBytes
        from declarative_train.planner.footprint.traced_step import step

        live = LiveBytes()
        result: StepResult = step(self._engine, live, number, batches, **more)
        self._peak = live.peak
        return result

    def found(self, number: int) -> MemoryMeasured | None:
        """Behind the step that was looked at; all ranks ask alike."""
        if number != self._at:
            return None
        engine = self._engine
        if self._how == ALLOCATED:
            self._peak = int(torch.cuda.max_memory_allocated(engine.device))
        mine = torch.tensor([self._peak], dtype=torch.int64, device=engine.device)
        measured = engine.ranks.concatenate(mine).tolist()
        return MemoryMeasured(number, predicted_by_rank(self._plan), measured, self._how, time.time())


def beside_model(plan: Plan, rank: int) -> int:
    """Bytes that the steps of a rank will take beside its parameters, which are there; 0 where the plan has none."""
    if not plan.memory:
        return 0
    place = plan.layout.ranks[rank].coordinates.get("pipeline", 0)
    row = dict(zip(kinds_of_rank(plan.layout), plan.memory, strict=True))[place]
    return row.of_step - row.parameters


def with_set(plan: Plan, bytes_on_device: int) -> Plan:
    """With the training set where it lies, which the plan could only guess."""
    rows = tuple(replace(row, held=bytes_on_device) for row in plan.memory)
    estimate = plan.estimate
    if estimate is not None and plan.memory:
        estimate = replace(estimate, memory_bytes=max(row.total for row in rows))
    return replace(plan, memory=rows, estimate=estimate)


def predicted_by_rank(plan: Plan) -> list[int]:
    rows = dict(zip(kinds_of_rank(plan.layout), plan.memory, strict=True))
    return [rows[rank.coordinates.get("pipeline", 0)].total for rank in plan.layout.ranks]
