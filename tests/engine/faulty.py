"""Run a saved plan with a fault planted: `python -m tests.engine.faulty PLAN FAULT RANK STEP [resume]`."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from declarative_train.engine.checkpoints.store import CheckpointStore
from declarative_train.engine.step.step_runner import StepRunner
from declarative_train.plan.codec import from_json
from declarative_train.run.launch import run
from declarative_train.run.signals import exit_process


def happen(fault: str) -> None:
    match fault:
        case "raise":
            raise ValueError("the dog ate the batch\nand more")
        case "memory":
            raise RuntimeError(
                "[enforce fail at alloc_cpu.cpp:132] DefaultCPUAllocator: can't allocate memory: 99 bytes"
            )
        case "space" | "full disk":
            raise OSError(28, "No space left on device", "/runs/x")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "hang":
            time.sleep(3600)
        case "nothing" | "slow" | "slow save":
            pass
        case _:
            raise AssertionError(fault)


def write_nothing(*_: object, **__: object) -> int:
    return happen("space") or 0


class Broken:
    """Chunks whose first one fails where the stage takes it: in the forward that torch's schedule calls."""

    def __getitem__(self, position: int) -> None:
        happen("raise")


def plant(mode: str, fault: str, rank: int, at_step: int) -> None:
    """Where a rank begins its part of a step."""
    holder: Any = StepRunner
    method = "run"
    if mode == "pipeline":
        from declarative_train.engine.axes.pipeline import StageForward

        holder, method = StageForward, "begin"
    right = getattr(holder, method)

    def faulty(self: Any, step: int, *args: Any) -> Any:
        if fault == "slow":
            time.sleep(0.02)
        if step == at_step and fault == "full disk":
            Path.write_text = write_nothing  # type: ignore[method-assign]
        if step == at_step and int(os.environ.get("RANK", "0")) == rank:
            if fault == "in a stage":
                return right(self, step, Broken())
            happen(fault)
        return right(self, step, *args)

    setattr(holder, method, faulty)
    if fault == "slow save":
        publish = CheckpointStore.publish

        def slowly(self: CheckpointStore, *args: Any) -> None:
            time.sleep(4)  # longer than the grace of the tests
            publish(self, *args)

        CheckpointStore.publish = slowly  # type: ignore[method-assign]


if __name__ == "__main__":
    path, fault, rank, step, *more = sys.argv[1:]
    plan = from_json(Path(path).read_text())
    plant(plan.layout.mode, fault, int(rank), int(step))
    exit_process(run(plan, resume=more[0] if more else None))
