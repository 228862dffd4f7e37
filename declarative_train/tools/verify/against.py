"""Comparison with an earlier run: the first steps of a recipe are run again with the current software. Their losses and
gradient norms are compared with the earlier ones. If a checkpoint was saved in one of these steps, its parameters are
compared too."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from declarative_train.app.api.errors import RUN_FAILED, WRONG_USE, DtrainError
from declarative_train.app.records.record import Record
from declarative_train.core.names import EVENTS
from declarative_train.engine.checkpoints.format import describe_tensors, load_tensors
from declarative_train.engine.checkpoints.store import CheckpointStore
from declarative_train.plan.checkpoint_files import checkpoints_root, read_run
from declarative_train.plan.plan import CheckpointPlan, Plan
from declarative_train.plan.settings import find_differing
from declarative_train.run.event import StepDone
from declarative_train.run.launch import launch
from declarative_train.run.sinks.jsonl import read_events
from declarative_train.tools.verify.findings import Comparison, Finding, Kind, Row, Verified, bounds_of
from declarative_train.tools.verify.prepare import Device, plan_here

MOST_STEPS = 20  # steps that are run again, or more if the first record is later
MODEL = "model/"


@dataclass(frozen=True, slots=True)
class Recorded:
    """Records and checkpoints of an earlier run. `windows`: {(a, b): the record of step b}. Step a is that of the
    previous record; the means in the record are over the steps a + 1 to b. `checkpoints`: {step: folder of the
    checkpoint}."""

    windows: dict[tuple[int, int], StepDone]
    checkpoints: dict[int, str]

    @property
    def steps(self) -> list[int]:
        return sorted({*(step for _, step in self.windows), *self.checkpoints})


def compare_with_run(plan: Plan, run: Record, *, step: int | None = None, device: Device | None = None) -> Verified:
    """Run the first steps of a plan again and compare them with an earlier run. Raises DtrainError.

    `step`: the last step to run. None: the last of the first 20 steps that has a record or a checkpoint in `run`; if
    none has, the first later step with one. `device`: where to run. None: GPUs if there are enough, else the CPU.
    """
    earlier = _read(Path(run.folder))
    within = [each for each in earlier.steps if each <= MOST_STEPS] or earlier.steps[:1]
    if not within:
        raise DtrainError(f"{run.folder} has no logged step and no checkpoint", exit_code=WRONG_USE)
    last = step or within[-1]
    notes = (
        [f"settings differ: {', '.join(keys[:5])}"]
        if (keys := find_differing([dict(run.settings), plan.settings]))
        else []
    )
    plan = plan_here(plan, device)
    saves = CheckpointPlan(last, 1, None, "min", background=False) if last in earlier.checkpoints else None
    scratch = Path(tempfile.mkdtemp(prefix="dtrain-verify-"))
    try:
        plan = replace(plan, checkpoint=saves, logging=replace(plan.logging, sinks={}, plugins={}, checkpoints=None))
        outcome = launch(plan, quiet=True, folder=scratch / "run", hosted=True, max_steps=last)
        if outcome.code:
            raise DtrainError("\n".join(outcome.why), exit_code=RUN_FAILED)
        comparison = _compare(plan, earlier, _read(scratch / "run"), last)
        if not comparison.rows:
            raise DtrainError(
                f"the runs have no records of the same steps up to step {last}: {run.folder} has the steps "
                f"{earlier.steps[:5]}; help: --set logging.every as in that run, or --step",
                exit_code=WRONG_USE,
            )
        by = read_run(run.folder).get("dtrain_version", "")
        title = f"steps 1 to {last} in {plan.layout.mode}, compared with {run.folder}{f' (dtrain {by})' if by else ''}"
        return Verified(plan, last, comparison, tuple(notes), title)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _read(folder: Path) -> Recorded:
    steps = [event for event in read_events(folder / EVENTS) if isinstance(event, StepDone)]
    before = [0, *(event.step for event in steps)]
    found, _ = CheckpointStore(checkpoints_root(str(folder))).entries()
    windows = {(begin, event.step): event for begin, event in zip(before, steps, strict=False)}
    return Recorded(windows, {entry.step: entry.path for entry in found})


def _compare(plan: Plan, earlier: Recorded, now: Recorded, last: int) -> Comparison:
    bounds, rows, findings = bounds_of(plan), [], []

    def judge(kind: Kind, found: list[tuple[str, float, str]]) -> None:
        for name, difference, why in found:
            if difference > bounds.gradient:
                findings.append(Finding(kind, name, difference, bounds.gradient, (), "", why))
        if found:
            rows.append(Row(kind, len(found), max(difference for _, difference, _ in found)))

    windows = sorted(earlier.windows.keys() & now.windows.keys(), key=lambda window: window[1])
    judge("loss", [_pair(step, earlier.windows[_, step].loss, now.windows[_, step].loss) for _, step in windows])
    norms = [(step, earlier.windows[_, step].grad_norm, now.windows[_, step].grad_norm) for _, step in windows]
    judge("gradient norm", [_pair(step, old, new) for step, old, new in norms if old is not None and new is not None])
    if last in earlier.checkpoints and last in now.checkpoints:
        judge("parameter", list(_parameters(earlier.checkpoints[last], now.checkpoints[last], last)))
    return Comparison(tuple(rows), tuple(findings), bounds)


def _pair(step: int, old: float, new: float) -> tuple[str, float, str]:
    difference = abs(new - old) / (abs(old) or 1.0) if new != old else 0.0
    difference = difference if difference == difference else float("inf")
    return f"step {step}", difference, f"{new:.8g} instead of {old:.8g}"


def _parameters(earlier: str, now: str, step: int) -> Iterator[tuple[str, float, str]]:
    """Compare the model in two checkpoints of the same `step`. `earlier`, `now`: their folders. For each tensor yield
    its name, the largest difference, and a remark. The difference is relative to the largest element in `earlier`. It
    is infinite if shape or dtype differ, or if one checkpoint lacks the tensor. One tensor at a time is in memory."""
    old, new = (
        {key: item for key, item in describe_tensors(path).items() if key.startswith(MODEL)} for path in (earlier, now)
    )
    for key in dict.fromkeys([*old, *new]):
        name = key.removeprefix(MODEL)
        if old.get(key) != new.get(key):
            yield name, float("inf"), f"{new.get(key, 'none')} instead of {old.get(key, 'none')}"
            continue
        size, dtype = old[key]
        mine, theirs = torch.empty(size, dtype=dtype), torch.empty(size, dtype=dtype)
        load_tensors(earlier, {key: theirs}, alone=True)
        load_tensors(now, {key: mine}, alone=True)
        apart = float((mine.double() - theirs.double()).abs().max()) if mine.numel() else 0.0
        scale = float(theirs.abs().max()) if mine.numel() else 1.0
        yield name, apart / (scale or 1.0) if apart == apart else float("inf"), f"after step {step}"
