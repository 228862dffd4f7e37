"""Verification: one optimizer step of a plan in its mode, compared with the same step in one process."""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
from collections.abc import Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from declarative_train.app.api.errors import RUN_FAILED, WRONG_USE, DtrainError
from declarative_train.core.amounts import format_count
from declarative_train.core.machine import num_cores
from declarative_train.engine.devices import num_gpus, safe_threads
from declarative_train.engine.failures import RunFailure
from declarative_train.plan.plan import Plan
from declarative_train.run.launch import launch
from declarative_train.run.processes import start_method
from declarative_train.run.sink import Sink
from declarative_train.tools.verify.findings import Verified, compare_reports
from declarative_train.tools.verify.observed_step import compare_step, record_step
from declarative_train.tools.verify.prepare import Device, depends_on_microbatches, one_process, plan_here
from declarative_train.tools.verify.step_files import StepFiles


def verify(
    plan: Plan,
    *,
    step: int = 1,
    in_float64: bool = False,
    device: Device | None = None,
    in_microbatches: bool = False,
) -> Verified:
    """Run one optimizer step of a plan twice, with its parallelism and in a single process, and compare the results.
    Both begin with the initial values and use the rows of step `step`. Raises DtrainError if a process fails.

    `in_float64`       compute in float64 instead of the plan's precision
    `device`           where to run; None: GPUs if there are enough, else the CPU
    `in_microbatches`  the single process computes one microbatch at a time, which needs less memory"""
    if not 1 <= step <= plan.training.num_steps:
        raise DtrainError(
            f"the run has the steps 1 to {plan.training.num_steps}; there is no step {step}", exit_code=WRONG_USE
        )
    plan = plan_here(plan, device, in_float64=in_float64)
    alone = one_process(plan, in_microbatches=in_microbatches)
    scratch = Path(tempfile.mkdtemp(prefix="dtrain-verify-"))
    try:
        folder, reports = scratch / "step", scratch / "reports"
        folder.mkdir()
        reports.mkdir()
        _run_apart(alone, folder, step)
        outcome = launch(
            plan,
            quiet=True,
            sinks=no_sinks,
            folder=scratch / "ranks",
            hosted=True,
            work=partial(compare_step, folder, reports, step),
        )
        if outcome.code:
            raise DtrainError("\n".join(outcome.why), exit_code=RUN_FAILED)
        found = [pickle.loads((reports / str(rank.rank)).read_bytes()) for rank in plan.layout.ranks]
        comparison = compare_reports(plan, StepFiles(folder).index, found)
        count = format_count(plan.layout.num_devices, "replica" if plan.layout.scatters else "rank")
        title = f"{plan.layout.mode} on {count} and one process: step {step}, {plan.training.precision}"
        return Verified(plan, step, comparison, _notes(plan), title)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def no_sinks(run_dir: Path) -> Sequence[Sink]:
    """Return an empty tuple instead of sinks, because a verification writes no events."""
    return ()


def _run_apart(plan: Plan, folder: Path, step: int) -> None:
    """Run one training step without other ranks. It runs in a child process, so that this process can still fork ranks
    afterwards. Raises DtrainError if the step fails."""
    uses_gpu = plan.layout.device == "cuda" or (plan.layout.device == "auto" and num_gpus() > 0)
    method = start_method("cuda" if uses_gpu else "cpu")
    threads = safe_threads(num_cores()) if method == "fork" else num_cores()
    context: Any = get_context(method)
    child = context.Process(target=_record, args=(plan, folder, step, threads))
    child.start()
    child.join()
    answer = folder / "outcome"
    code, why = pickle.loads(answer.read_bytes()) if answer.exists() else (RUN_FAILED, ["it was killed"])
    if code:
        raise DtrainError("in one process: " + "\n".join(why), exit_code=RUN_FAILED)


def _record(plan: Plan, folder: Path, step: int, threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
    try:
        outcome = launch(
            plan,
            quiet=True,
            sinks=no_sinks,
            folder=folder.parent / "one_process",
            hosted=True,
            work=partial(record_step, folder, step),
        )
        answer = outcome.code, outcome.why
    except RunFailure as failure:
        answer = RUN_FAILED, (str(failure),)
    (folder / "outcome").write_bytes(pickle.dumps(answer))
    os._exit(0)


def _notes(plan: Plan) -> tuple[str, ...]:
    notes = []
    if plan.draws:
        names = ", ".join(f"`{path}`" for path in plan.draws[:3])
        notes.append(f"{names}{' and others' if len(plan.draws) > 3 else ''}: random numbers are off")
    if plan.training.compile:
        notes.append("outputs of nodes are not compared, since the model is compiled")
    if depends_on_microbatches(plan):
        notes.append("a node computes over the samples of a microbatch: the one process has the same microbatches")
    return tuple(notes)
