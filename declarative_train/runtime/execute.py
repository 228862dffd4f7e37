"""The training loop, on one page. It knows no mode: engines compute, the loop yields events, sinks write."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from declarative_train.components.lr_schedules import LR_SCHEDULES
from declarative_train.data.batch import Batch
from declarative_train.logs.event import CheckpointSaved, Event, Notice, Progress, RunEnded
from declarative_train.runtime.checkpoint import epoch_rows
from declarative_train.runtime.engine import Engine
from declarative_train.runtime.failures import CheckpointFailure
from declarative_train.runtime.meter import Meter
from declarative_train.runtime.read_component import read_component
from declarative_train.runtime.run_state import RunState, is_better
from declarative_train.runtime.window import Means, Window

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan
    from declarative_train.runtime.checkpoint import Checkpoints
    from declarative_train.runtime.evaluate import Evaluator
    from declarative_train.runtime.stop import StopAgreement


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
    """Train from `state.step + 1` to `last_step`; `steps` gives this rank's batches of each step.

    All ranks run it alike. The last event is RunEnded.
    """
    due, batch = Due(plan, last_step), plan.batch
    schedule = read_component(LR_SCHEDULES, plan.training.lr_schedule)
    num_steps, num_warmup_steps = plan.training.num_steps, plan.training.num_warmup_steps
    window = Window(
        engine,
        skips=plan.training.non_finite == "skip",
        logging=Means.from_json(state.logging),
        epoch=Means.from_json(state.epoch),
    )
    meter = Meter(plan, engine)
    tail = Tail(plan, engine, state, evaluator, checkpoints)
    status: str | None = None
    meter.start()
    for batches in steps:
        step = state.step + 1
        num_rows = due.num_rows(step)
        meter.data_is_there(num_rows)
        log = due.log(step)
        lr_factor = schedule.factor(step - 1, num_steps, num_warmup_steps)
        result = engine.step(step, batches, num_rows=num_rows, lr_factor=lr_factor, measure=log)
        window.add(step, result, num_rows)
        state.step = step
        epoch = (step - 1) // batch.steps_per_epoch + 1
        yield Progress(step, epoch)
        reason = stop.reached()
        if log or reason or due.anything(step):
            for message in window.flush():
                yield Notice(message, time.time())
        if due.epoch_end(step):
            window.require_items()
        if log:
            means = window.take_logging() if due.window_end(step) else window.logging
            yield meter.step_done(step, epoch, means, window.grad_norm)
        if due.evaluation(step):
            with meter.pause():
                for name in plan.evaluation.sets if plan.evaluation else ():
                    yield from tail.evaluated(name)
        improved, ends_early = tail.judge() if due.evaluation(step) else (False, False)
        if improved or due.checkpoint(step) or ends_early or reason:
            state.logging = window.logging.as_json()
            state.epoch = {} if step % batch.steps_per_epoch == 0 else window.epoch.as_json()
            with meter.pause():
                yield from tail.save(improved, wanted=reason is not None)
        if step % batch.steps_per_epoch == 0:
            yield meter.epoch_done(step, epoch, window.take_epoch(), tail.take_evaluations())
        if reason or ends_early:
            status = "stopped" if reason else "early_stop" if step != num_steps else None
            break
        meter.data_is_wanted()
    state.seconds += meter.seconds()
    if status is None:
        status = "finished" if state.step == num_steps else "stopped"  # --max-steps
    if status != "stopped":
        yield from tail.final()
    values, value_steps = tail.summary()
    yield RunEnded(state.step, status, values, meter.seconds(), time.time(), value_steps)


class Due:
    """What is to be done after which step."""

    def __init__(self, plan: Plan, last_step: int) -> None:
        self._log_every = plan.logging.every_steps
        self._num_steps = plan.training.num_steps
        self._last_step = last_step
        self._evaluates = plan.evaluation is not None and bool(plan.evaluation.sets)
        self._evaluate_every = plan.evaluation.every_steps if plan.evaluation else None
        self._saves = plan.checkpoint is not None
        self._save_every = plan.checkpoint.every_steps if plan.checkpoint else None
        self._steps_per_epoch = plan.batch.steps_per_epoch
        self._batch_size = plan.batch.global_batch_size
        self._epoch_rows = epoch_rows(plan)

    def log(self, step: int) -> bool:
        return self.window_end(step) or step == self._last_step

    def window_end(self, step: int) -> bool:
        """Not where a run breaks off (--max-steps): who goes on from there goes on with the window."""
        return step % self._log_every == 0

    def epoch_end(self, step: int) -> bool:
        """Or the end of a run that is shorter than one."""
        return step % self._steps_per_epoch == 0 or step == self._num_steps < self._steps_per_epoch

    def evaluation(self, step: int) -> bool:
        if not self._evaluates:
            return False
        return step == self._num_steps or (self._evaluate_every is not None and step % self._evaluate_every == 0)

    def checkpoint(self, step: int) -> bool:
        if not self._saves:
            return False
        return step == self._last_step or (self._save_every is not None and step % self._save_every == 0)

    def anything(self, step: int) -> bool:
        """Something for which the host waits anyway."""
        return self.evaluation(step) or self.checkpoint(step) or self.epoch_end(step)

    def num_rows(self, step: int) -> int:
        """Real rows of the global batch: the last of an epoch may be smaller."""
        position = (step - 1) % self._steps_per_epoch * self._batch_size
        return min(self._batch_size, self._epoch_rows - position)


class Tail:
    """What follows a step now and then: evaluations, what they decide, checkpoints, the last look at the test sets."""

    def __init__(
        self, plan: Plan, engine: Engine, state: RunState, evaluator: Evaluator, checkpoints: Checkpoints
    ) -> None:
        self._plan = plan
        self._engine = engine
        self._state = state
        self._evaluator = evaluator
        self._checkpoints = checkpoints
        self._saved_step: int | None = None
        self._recent: dict[str, float] = {}

    def evaluated(self, name: str, *, weights_step: int | None = None) -> Iterator[Event]:
        """`weights_step`: when the weights are not the last ones."""
        event, notices = self._evaluator(name, self._state.step)
        self._state.values |= event.values
        self._state.value_steps |= dict.fromkeys(event.values, weights_step or self._state.step)
        self._recent |= event.values
        yield event
        yield from (Notice(message, time.time()) for message in notices)

    def take_evaluations(self) -> dict[str, float]:
        taken, self._recent = self._recent, {}
        return taken

    def judge(self) -> tuple[bool, bool]:
        """(best so far, end early), from the evaluations of this step."""
        state, checkpoint, early = self._state, self._plan.checkpoint, self._plan.training.early_stop
        improved = False
        if checkpoint is not None and checkpoint.best_metric is not None:
            value = state.values[checkpoint.best_metric]
            improved = is_better(value, state.best_value, checkpoint.best_mode)
            if improved:
                state.best_value, state.best_step = value, state.step
        if early is None:
            return improved, False
        value = state.values[early.metric]
        if is_better(value, state.stop_value, early.mode):
            state.stop_value, state.stop_step = value, state.step
        return improved, state.step - state.stop_step >= early.patience_steps

    def save(self, improved: bool, *, wanted: bool) -> Iterator[Event]:
        """`wanted`: somebody asked to stop, so there must be a checkpoint even if the recipe has none."""
        checkpoint = self._plan.checkpoint
        if (checkpoint is None and not wanted) or self._saved_step == self._state.step:
            return
        begun_s = time.monotonic()
        keep = checkpoint.keep if checkpoint is not None else 1
        path = self._checkpoints.save(self._state, is_best=improved, keep=keep)
        self._saved_step = self._state.step
        yield CheckpointSaved(self._state.step, path, improved, time.monotonic() - begun_s, time.time())

    def final(self) -> Iterator[Event]:
        """The sets that are looked at once, on the best weights."""
        sets = self._plan.evaluation.final_sets if self._plan.evaluation else ()
        if not sets:
            return
        best = self._state.best_step
        if best is None:
            names = ", ".join(sets)
            yield Notice(f"{names}: on the last weights, as checkpoint.best is not set", time.time())
        elif best != self._state.step:
            try:
                self._checkpoints.load_model(self._checkpoints.at(best))
            except CheckpointFailure as failure:
                best = None
                why = f"{', '.join(sets)}: on the last weights, as the best ones cannot be read: {failure}"
                yield Notice(why, time.time(), is_warning=True)
            else:
                yield Notice(f"{', '.join(sets)}: on the best weights, those of step {best}", time.time())
        for name in sets:
            yield from self.evaluated(name, weights_step=best)

    def summary(self) -> tuple[dict[str, float], dict[str, int]]:
        """The latest of every value, and the step of each."""
        state, checkpoint = self._state, self._plan.checkpoint
        values, steps = dict(state.values), dict(state.value_steps)
        if checkpoint is not None and state.best_value is not None and state.best_step is not None:
            values[f"best/{checkpoint.best_metric}"] = state.best_value
            steps[f"best/{checkpoint.best_metric}"] = state.best_step
        return values, steps
