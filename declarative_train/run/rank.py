"""Run of one rank from start to end: engine, data, checkpoint, training loop, sinks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from declarative_train.core.packs import hooks
from declarative_train.data.batch import Batch
from declarative_train.data.prefetch import PATIENCE, REPORT_S
from declarative_train.data.rank_batches import EvaluationBatches, TrainingBatches
from declarative_train.data.skipping import FILE, LOG, in_words, read_skipped
from declarative_train.data.tensor_sets import SampleSet, open_sets
from declarative_train.engine.checkpoints.store import CheckpointStore
from declarative_train.engine.collectives import finish_together
from declarative_train.engine.devices import bind_to_gpu, device_of, keep_freed_memory
from declarative_train.engine.engine import Engine, get_process_batch
from declarative_train.engine.failures import limit_s
from declarative_train.engine.step.model_preparation import fill
from declarative_train.engine.step.precision import default_dtype, matmul_precision
from declarative_train.engine.step.randomness import deterministic_kernels
from declarative_train.planner.text.describe import describe, summary
from declarative_train.run.checkpoint import Checkpoints
from declarative_train.run.class_predictions import predictions
from declarative_train.run.evaluate import Evaluator
from declarative_train.run.event import Notice, RunEnded, RunStarted
from declarative_train.run.execute import execute
from declarative_train.run.graph_and_hparams import hyperparameters, model_graph
from declarative_train.run.memory_measurement import bytes_without_parameters, replace_set_bytes
from declarative_train.run.meter import comparable_estimate
from declarative_train.run.rank_job import RankJob
from declarative_train.run.run_state import RunState
from declarative_train.run.signals import EXIT_STOPPED
from declarative_train.run.sink import FanOut
from declarative_train.run.stop_agreement import StopAgreement

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan

_ALIVE: list[object] = []  # engines are never freed: tearing a process group down may hang (torch-facts, section 4)


@dataclass(slots=True)
class FailureContext:
    """Facts about a rank for messages about failures. `has_stepped`: this session has completed a step. `count`: number
    of batches that the rank has computed, also those of evaluations."""

    rank: int
    stage: int | None = None
    step: int | None = None
    has_stepped: bool = False
    count: int = 0  # batches, also those of evaluations


def run_rank(job: RankJob, context: FailureContext, asked: Callable[[], bool]) -> int:
    """Run one rank and return its exit code: 0, or 75 if the run was stopped early with a checkpoint. With several
    ranks, the process group must already be initialised. `asked`: function that returns whether a signal asked this
    process to stop."""
    plan = job.plan
    rank_plan = plan.layout.ranks[context.rank]
    context.stage = rank_plan.stages[0] if rank_plan.stages else None
    device = device_of(rank_plan, job.device_kind, job.device_index)
    with torch_settings(plan, device):
        sinks = FanOut(job.sinks(job.run_dir) if context.rank == 0 else ())
        # report a stall of the data before other ranks time out, because only this rank knows the reason
        PATIENCE.limit_s = max(0.9 * limit_s("DTRAIN_TIMEOUT_S"), REPORT_S)
        if context.rank == 0:
            PATIENCE.report = lambda message: sinks.write(Notice(message, time.time(), is_warning=True))
        else:
            begin = f"dtrain: rank {context.rank}: "
            PATIENCE.report = lambda message: print(begin + message, file=sys.stderr, flush=True)
        try:
            return _train(job, context, asked, device, sinks)
        finally:
            PATIENCE.reset()
            sinks.close()


def _train(
    job: RankJob, context: FailureContext, asked: Callable[[], bool], device: torch.device, sinks: FanOut
) -> int:
    plan = job.plan
    # a checkpoint replaces the initial weights, whose file may no longer exist
    entry = job.place.entry
    fill_model = partial(fill, restores=entry is not None)
    engine = Engine(replace(plan, weights=job.place.weights), device, fill=fill_model)
    if not plan.layout.is_one_process:  # a single process has no process group, and may be a notebook with many runs
        _ALIVE.append(engine)
    skipped = Path(job.run_dir) / FILE
    LOG.to(str(skipped) if plan.data.on_bad_row == "skip" else None)
    sets = open_sets(plan.data)
    if context.rank == 0:
        LOG.write(*(each for found in sets.values() for each in found.prepared.left_out))
    store = CheckpointStore(job.place.checkpoints)
    checkpoints = Checkpoints(plan, engine, store, sinks.flush)
    state = checkpoints.load(entry) if entry is not None else RunState()
    target_notices = state.adopt_targets(plan)
    last_step = plan.training.num_steps
    if job.max_steps is not None:
        last_step = min(last_step, state.step + job.max_steps)
    training = TrainingBatches(
        plan.data,
        get_process_batch(plan),
        engine.dp_rank,
        sets,
        device=device,
        hold_on_device=True,
        steps_bytes=bytes_without_parameters(plan, context.rank),
    )
    plan = replace_set_bytes(plan, training.bytes_on_device if device.type == "cuda" else 0)
    stop = StopAgreement(len(plan.layout.ranks), asked, plan.training.max_time_s)
    writers = (make(plan, engine) for make in hooks("evaluation_writer"))
    evaluator = Evaluator(
        engine.plan,
        engine,
        evaluation_batches(plan, engine, sets, context),
        predictions(plan, device),
        [writer for writer in writers if writer is not None],
    )
    if context.rank == 0:
        expected, notice = comparable_estimate(plan, device)
        sinks.write(replace(run_started(job, state.step), predicted=expected))
        for message in job.place.warnings:
            sinks.write(Notice(message, time.time(), is_warning=True))
        for message in (*job.notices, *job.place.notices, *target_notices, *filter(None, [notice])):
            sinks.write(Notice(message, time.time()))
    if plan.checkpoint is not None:
        checkpoints.record_base()
    steps = track_step(training.iterate(state.step + 1, last_step - state.step), context, state.step + 1)
    events = execute(
        plan, engine, steps, state, last_step=last_step, evaluator=evaluator, checkpoints=checkpoints, stop=stop
    )
    try:
        for event in events:
            if isinstance(event, RunEnded) and (found := read_skipped(str(skipped))):
                sinks.write(Notice(f"{in_words(found)}; {skipped} lists all of them", time.time(), is_warning=True))
            sinks.write(event)
    finally:
        checkpoints.settle()
    if not plan.layout.is_one_process:
        finish_together(device)
    return EXIT_STOPPED if stop.reason is not None else 0


def track_step(steps: Iterable[Sequence[Batch]], context: FailureContext, first_step: int) -> Iterator[Sequence[Batch]]:
    """Yield the batches of each step. For messages about failures, keep the number of the step that is loaded or
    computed in `context.step`. `first_step`: number of the first step."""
    context.step = first_step
    for step, batches in enumerate(steps, first_step):
        yield batches
        context.step, context.has_stepped = step + 1, True
        context.count += 1
    context.step = None


def evaluation_batches(
    plan: Plan, engine: Engine, sets: Mapping[str, SampleSet], context: FailureContext
) -> Callable[[str], Iterable[Batch]]:
    """Return a function that takes the name of a set and returns this rank's batches of the set. `context.count` grows
    with each batch, which shows that the rank makes progress."""

    def batches(name: str) -> Iterable[Batch]:
        evaluation = plan.evaluation
        assert evaluation is not None
        found = EvaluationBatches(
            plan.data,
            name,
            sets,
            batch_size=evaluation.batch_size,
            num_ranks=get_process_batch(plan).data_parallel_size,
            dp_rank=engine.dp_rank,
            max_samples=evaluation.max_samples,
            pad_to_full=plan.batch.pad_to_full,
            device=engine.device,
            cuts=True,
        )
        for batch in found.iterate():
            context.count += 1
            yield batch

    return batches


def run_started(job: RankJob, first_step: int) -> RunStarted:
    plan = job.plan
    return RunStarted(
        name=plan.name,
        run_dir=str(job.run_dir),
        mode=plan.layout.mode,
        device=job.device_kind,
        num_ranks=len(plan.layout.ranks),
        num_steps=plan.training.num_steps,
        steps_per_epoch=plan.batch.steps_per_epoch,
        first_step=first_step,
        num_parameters=sum(item.num_elements for item in plan.parameters if item.tie is None),
        plan_brief=summary(plan),
        plan_text=describe(plan),
        hyperparameters=hyperparameters(plan),
        graph=model_graph(plan),
        time_unix_s=time.time(),
    )


@contextmanager
def torch_settings(plan: Plan, device: torch.device) -> Iterator[None]:
    """Set torch's global settings (memory, kernels, dtypes) for a run within the `with` block."""
    if device.type == "cuda":
        bind_to_gpu(device)
    else:
        keep_freed_memory()
    with (
        default_dtype(plan),
        deterministic_kernels(plan.training.deterministic),
        matmul_precision(plan.training.matmul, device),
    ):
        yield
