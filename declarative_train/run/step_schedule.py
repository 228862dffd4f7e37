"""Schedule of the steps of a run: the rows and the learning rate of each step, and the actions that follow it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from declarative_train.components.lr_schedules import LR_SCHEDULES
from declarative_train.data.order import locate

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan


class DueActions(NamedTuple):
    """Actions that are due after one step. `step` and `epoch` count from 1.

    `num_rows`      rows in the global batch, without padding; fewer at the end of an epoch
    `lr_factor`     factor of the lr schedule in this step
    `log`           means of losses and metrics are written
    `window_ends`   the means start again after this step; False if it is logged only because the session ends
    `evaluation`    the sets are evaluated
    `checkpoint`    a checkpoint is saved
    `epoch_ends`    last step of an epoch
    `closes_epoch`  last step of an epoch, or of a run shorter than an epoch
    `anything`      log, evaluation, checkpoint or closes_epoch: values from the device are needed
    """

    step: int
    epoch: int
    num_rows: int
    lr_factor: float
    log: bool
    window_ends: bool
    evaluation: bool
    checkpoint: bool
    epoch_ends: bool
    closes_epoch: bool
    anything: bool


class StepSchedule:
    """Schedule of one session: in which steps it logs, evaluates and saves. `last_step`: last step of the session; a
    later session may continue the run."""

    def __init__(self, plan: Plan, last_step: int) -> None:
        self._last_step = last_step
        self._batch = plan.batch
        self._num_samples = plan.data.set("training").num_samples
        self._schedule = LR_SCHEDULES.read(plan.training.lr_schedule)
        self._num_steps, self._num_warmup_steps = plan.training.num_steps, plan.training.num_warmup_steps
        self._log_every = plan.logging.every_steps
        evaluation, checkpoint = plan.evaluation, plan.checkpoint
        self._evaluates = evaluation is not None and bool(evaluation.sets or evaluation.samples)
        self._evaluate_every = evaluation.every_steps if evaluation is not None else None
        self._saves = checkpoint is not None
        self._save_every = checkpoint.every_steps if checkpoint is not None else None

    def at(self, step: int) -> DueActions:
        per_epoch = self._batch.steps_per_epoch
        found = locate(step, self._batch, self._num_samples)
        # a session that ends early (--max-steps) does not end the window: the resumed run continues it
        window_ends = step % self._log_every == 0
        log = window_ends or step == self._last_step
        evaluation = self._evaluates and (step == self._num_steps or _is_multiple(step, self._evaluate_every))
        checkpoint = self._saves and (step == self._last_step or _is_multiple(step, self._save_every))
        epoch_ends = step % per_epoch == 0
        closes_epoch = epoch_ends or step == self._num_steps < per_epoch
        return DueActions(
            step,
            found.epoch + 1,
            found.size,
            self._schedule.factor(step - 1, self._num_steps, self._num_warmup_steps),
            log,
            window_ends,
            evaluation,
            checkpoint,
            epoch_ends,
            closes_epoch,
            log or evaluation or checkpoint or closes_epoch,
        )

    def status(self, step: int, *, is_stopped: bool, ends_early: bool) -> str:
        """Return how a session ended, for the event RunEnded: `stopped`, `finished` or `early_stop`. `step`: the last
        step. `is_stopped`: a request to stop ended it. `ends_early`: the recipe's early_stop ended it."""
        if is_stopped or (step != self._num_steps and not ends_early):
            return "stopped"  # by --max-steps, too
        return "finished" if step == self._num_steps else "early_stop"


def _is_multiple(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0
