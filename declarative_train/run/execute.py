"""Training loop. It does not depend on the parallel mode: the engine computes, the loop yields events, sinks write."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from declarative_train.data.batch import Batch
from declarative_train.run.after_step import AfterStep
from declarative_train.run.event import Event, Notice, Progress, RunEnded
from declarative_train.run.first_steps import FirstSteps
from declarative_train.run.loss_window import LossWindow, Means
from declarative_train.run.memory_measurement import MemoryMeasurement
from declarative_train.run.meter import Meter
from declarative_train.run.run_state import RunState
from declarative_train.run.step_schedule import StepSchedule

if TYPE_CHECKING:
    from declarative_train.engine.engine import Engine
    from declarative_train.plan.plan import Plan
    from declarative_train.run.checkpoint import Checkpoints
    from declarative_train.run.evaluate import Evaluator
    from declarative_train.run.stop_agreement import StopAgreement


def execute(
    plan: Plan,
    engine: Engine,
    steps: Iterable[Sequence[Batch]],
    state: RunState,
    *,
    last_step: int,
    evaluator: Evaluator,
    checkpoints: Checkpoints,
    stop: StopAgreement,
) -> Iterator[Event]:
    """Train from step `state.step + 1` to `last_step`, and yield events, the last of which is RunEnded. `steps`: this
    rank's batches of each step. All ranks run this loop."""
    step_schedule, meter = StepSchedule(plan, last_step), Meter(plan, engine)
    begun = (Means.from_json(state.logging), Means.from_json(state.epoch))
    window = LossWindow(engine, *begun, skips=plan.training.non_finite == "skip")
    after = AfterStep(plan, state, evaluator, checkpoints)
    memory = MemoryMeasurement(plan, engine, state.step + 1, last_step)
    first_steps = FirstSteps(plan, engine, state.step + 1)
    meter.start()
    for batches in steps:
        due = step_schedule.at(state.step + 1)
        meter.count_arrival(due.num_rows)
        result = memory.step(due.step, batches, num_rows=due.num_rows, lr_factor=due.lr_factor, measure=due.log)
        window.add(due.step, result, due.num_rows)
        first_steps.add(due.step, result)
        state.step = due.step
        yield Progress(due.step, due.epoch)
        yield from after.report_saved()
        measured = memory.report(due.step)
        if measured is not None:
            yield measured
        yield from (Notice(message, time.time(), is_warning=True) for message in first_steps.report(due.step))
        reason = stop.check(window.exchange, is_due=due.anything)
        if reason or due.anything:
            yield from (Notice(message, time.time()) for message in window.flush())
        if due.closes_epoch:
            window.require_items()
        if due.log:
            means = window.take_logging() if due.window_ends else window.logging
            yield meter.step_done(due.step, due.epoch, means, window.grad_norm)
        if due.evaluation:
            with meter.pause():
                yield from after.evaluations()
        improved, ends_early = after.judge() if due.evaluation else (False, False)
        if improved or ends_early or reason or due.checkpoint:
            state.logging, state.epoch = window.logging.as_json(), {} if due.epoch_ends else window.epoch.as_json()
            with meter.pause():
                ends = bool(reason) or ends_early or state.step == last_step
                yield from after.save(improved, wanted=reason is not None, ends=ends)
        if due.epoch_ends:
            yield meter.epoch_done(due.step, due.epoch, window.take_epoch(), after.take_evaluations())
        if reason or ends_early:
            break
        meter.data_is_wanted()
    else:
        reason, ends_early = None, False
    yield from (Notice(message, time.time(), is_warning=True) for message in first_steps.final())
    yield from after.report_saved(wait=True, ends=True)
    state.seconds += meter.seconds()
    status = step_schedule.status(state.step, is_stopped=reason is not None, ends_early=ends_early)
    if status != "stopped":
        yield from after.final()
    values, value_steps = after.summary()
    yield from after.warn_of_nan(values)
    if (waiting := meter.explain_wait(plan.data.workers, len(plan.layout.ranks) // plan.layout.num_nodes)) is not None:
        yield Notice(waiting, time.time())
    yield RunEnded(state.step, status, values, meter.seconds(), time.time(), value_steps)
