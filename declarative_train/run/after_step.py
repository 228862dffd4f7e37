"""Work after a step: evaluations, the decisions that depend on them, and checkpoints. After the last step: the
evaluation of the sets that are evaluated only at the end."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from declarative_train.core.amounts import format_count
from declarative_train.engine.failures import CheckpointFailure, PeerFailure, explain
from declarative_train.run.evaluate import nan_message
from declarative_train.run.event import CheckpointSaved, Event, Notice
from declarative_train.run.run_state import RunState, is_better

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan
    from declarative_train.run.checkpoint import Checkpoints
    from declarative_train.run.evaluate import Evaluator


class AfterStep:
    """Evaluations and checkpoints of one session. (A session is one start of the program; a resumed run has several.)
    Results of evaluations go into the RunState, which checkpoints contain."""

    def __init__(self, plan: Plan, state: RunState, evaluator: Evaluator, checkpoints: Checkpoints) -> None:
        self._plan = plan
        self._state = state
        self._evaluator = evaluator
        self._checkpoints = checkpoints
        self._saved_step: int | None = None
        self._under_way: CheckpointSaved | None = None
        self._begun_s = 0.0
        self._num_left_out = 0  # checkpoints that were due while another one was being written
        self._recent: dict[str, float] = {}

    def evaluations(self) -> Iterator[Event]:
        """Evaluate every set of `evaluation.sets` and yield the results as events. Then yield the events that packs
        make, such as generated texts."""
        for name in self._plan.evaluation.sets if self._plan.evaluation else ():
            yield from self.evaluate_set(name)
        for write in self._evaluator.writers:
            yield write(self._state.step)

    def evaluate_set(self, name: str, *, weights_step: int | None = None) -> Iterator[Event]:
        """Evaluate the set `name`. Yield its result, the predicted classes and notices as events. `weights_step`: the
        step to which the model's weights belong, if it is not the current step."""
        event, notices = self._evaluator(name, self._state.step)
        self._state.values |= event.values
        self._state.value_steps |= dict.fromkeys(event.values, weights_step or self._state.step)
        self._recent |= event.values
        yield event
        yield from self._evaluator.class_predictions
        yield from (Notice(message, time.time()) for message in notices)

    def take_evaluations(self) -> dict[str, float]:
        taken, self._recent = self._recent, {}
        return taken

    def judge(self) -> tuple[bool, bool]:
        """Return (is best, must stop), after the evaluations of this step: whether the model is the best so far by
        `checkpoint.best`, and whether the run must stop by `training.early_stop`. Store new best values in the
        RunState."""
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

    def save(self, improved: bool, *, wanted: bool, ends: bool) -> Iterator[Event]:
        """Start to save a checkpoint of the current step, if it is not saved yet, after the previous save has ended.
        Yield the events of ended saves; `report_saved` yields that of a save in the background later.

        `improved`  the checkpoint is the best so far
        `wanted`    save even if the recipe asks for no checkpoints, because the run was asked to stop
        `ends`      no step follows: an error of this save is raised. If steps follow and the previous save hangs, this
                    checkpoint is left out
        """
        checkpoint = self._plan.checkpoint
        if (checkpoint is None and not wanted) or self._saved_step == self._state.step:
            return
        if not ends and self._checkpoints.is_stuck():
            self._num_left_out += 1
            if self._num_left_out == 1:
                before = f"that of step {self._saved_step} is still being written"
                yield Notice(f"no checkpoint of step {self._state.step}: {before}", time.time(), is_warning=True)
            return
        yield from self.report_saved(wait=True)
        self._begun_s = time.monotonic()
        keep = checkpoint.keep if checkpoint is not None else 1
        path = self._checkpoints.save(self._state, is_best=improved, keep=keep)
        self._saved_step = self._state.step
        self._under_way = CheckpointSaved(self._state.step, path, improved, 0.0, 0.0)
        yield from self.report_saved(ends=ends)

    def report_saved(self, *, wait: bool = False, ends: bool = False) -> Iterator[Event]:
        """Yield the event of a save that was started earlier, if it is complete. `wait`: first wait until it is. While
        the checkpoint cannot be written, yield one warning with the reason.

        If the save failed, raise its error. If the recipe allows failed saves and more steps follow (`ends` is False),
        yield a warning instead."""
        if self._under_way is None:
            return
        if self._checkpoints.is_writing and not wait:
            if (reason := self._checkpoints.take_stuck_reason()) is not None:
                what = f"the checkpoint of step {self._under_way.step} cannot be written yet and is tried again"
                yield Notice(f"{what}: {reason}", time.time(), is_warning=True)
            return
        under_way, self._under_way = self._under_way, None
        left_out, self._num_left_out = self._num_left_out, 0
        if left_out > 1:
            number = format_count(left_out, "checkpoint")
            what = f"{number} were not saved while that of step {under_way.step} was being written"
            yield Notice(what, time.time(), is_warning=True)
        try:
            self._checkpoints.wait()
        except (OSError, CheckpointFailure, PeerFailure) as error:
            if ends or self._plan.checkpoint is None or self._plan.checkpoint.on_failure == "stop":
                raise
            what = f"there is no checkpoint of step {under_way.step}, and training continues"
            yield Notice(f"{what}: {explain(error)}", time.time(), is_warning=True)
            return
        yield replace(under_way, seconds=time.monotonic() - self._begun_s, time_unix_s=time.time())

    def final(self) -> Iterator[Event]:
        """Evaluate the sets that are evaluated only at the end of the run, and yield the results as events. They are
        evaluated with the best weights. If `checkpoint.best` is not set, or the best weights cannot be read, the last
        weights are used."""
        sets = self._plan.evaluation.final_sets if self._plan.evaluation else ()
        if not sets:
            return
        best = self._state.best_step
        if best is None:
            names = ", ".join(sets)
            yield Notice(f"{names}: evaluated with the last weights, because checkpoint.best is not set", time.time())
        elif best != self._state.step:
            try:
                self._checkpoints.load_model(self._checkpoints.at(best))
            except CheckpointFailure as failure:
                best = None
                why = f"evaluated with the last weights, because the best ones cannot be read: {failure}"
                yield Notice(f"{', '.join(sets)}: {why}", time.time(), is_warning=True)
            else:
                yield Notice(f"{', '.join(sets)}: evaluated with the best weights, those of step {best}", time.time())
        for name in sets:
            yield from self.evaluate_set(name, weights_step=best)

    def warn_of_nan(self, values: dict[str, float]) -> Iterator[Event]:
        """Yield a warning for each metric that is nan in `values`, the results at the end of the run. Loss terms are
        left out, because the training loop already reports them."""
        for name, value in values.items():
            if math.isnan(value) and not name.partition("/")[2].startswith("loss"):
                yield Notice(f"at the end, {nan_message(name)}", time.time(), is_warning=True)

    def summary(self) -> tuple[dict[str, float], dict[str, int]]:
        """Return two dicts: the latest value of each result, and the step to which the value belongs. Keys are names of
        results, such as `validation/loss`."""
        state, checkpoint = self._state, self._plan.checkpoint
        values, steps = dict(state.values), dict(state.value_steps)
        if checkpoint is not None and state.best_value is not None and state.best_step is not None:
            values[f"best/{checkpoint.best_metric}"] = state.best_value
            steps[f"best/{checkpoint.best_metric}"] = state.best_step
        return values, steps
