"""The folder of a run, and which folder and checkpoint `--resume` means.

<logging.dir>/<name>/<time>-<mode>-<what differs>/
    run.json  plan.json  events.jsonl  events.out.tfevents.*  checkpoints/step_00000120/  failures/  lock
<checkpoint.dir>/<name>/<the same>/              where a recipe names one: a folder, or a URL
    owner.json  checkpoints/step_00000120/

Whoever starts the ranks decides all of it, before any of them loads anything: which run, that nobody else writes to it,
and the newest checkpoint of it whose every byte is what was written.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from declarative_train.core.amounts import counted
from declarative_train.core.run_files import RUN
from declarative_train.core.secrets import in_texts, with_names
from declarative_train.engine.checkpoints.find import NoWholeCheckpoint, settled_weights
from declarative_train.engine.checkpoints.store import CheckpointStore, Entry, Look, damage, read_entry
from declarative_train.engine.failures import CheckpointFailure, RunFailure
from declarative_train.files.open_files import shown
from declarative_train.plan.codec import PlanError, from_json, save, to_saved_json
from declarative_train.plan.resumable import judge
from declarative_train.plan.run_folder import (
    CHECKPOINTS,
    MANIFEST,
    PLAN,
    checkpoints_root,
    newest_first,
    owner_of,
    read_run,
)
from declarative_train.plan.settings import asked_for, differing, label
from declarative_train.run.storage.checkpoint_dir import claim, dir_notices, external_root, newest_below
from declarative_train.run.storage.run_lock import LOCK, RunLock

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan, WeightsPlan

MOST_CHANGES = 5  # that are named when a recipe is no longer that of a checkpoint


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run writes, and what it starts from: a checkpoint, or the plan's weights, each a file or a checkpoint."""

    run_dir: Path
    entry: Entry | None
    weights: tuple[WeightsPlan, ...] = ()
    notices: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    elsewhere: str | None = None  # the folder or URL of its checkpoints, where they are not in `run_dir`

    @property
    def checkpoints(self) -> str:
        return self.elsewhere or str(self.run_dir / CHECKPOINTS)


@dataclass(frozen=True, slots=True)
class Found:
    """What `--resume` means; `run` None: a new one, and `why` where that is not what was asked for."""

    entry: Entry | None
    run: Path | None = None
    why: str = ""
    notices: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()


def open_place(plan: Plan, resume: str | None, lock: RunLock, look: Look = damage, folder: Path | None = None) -> Place:
    """The folder is there, held by `lock`, with the plan in it. `look` reads a checkpoint that would be taken.
    `folder`: where the run writes, not in a new one among those of its recipe; `resume` goes on with what it holds.

    Raises RunFailure, and leaves no folder behind, when a path was given that holds no checkpoint, or one of another
    run, when all of them are damaged, when the run is going on, and when the folder cannot be written.
    """
    if folder is not None:
        found = _in_folder(folder, resume is not None, lock, look)
    else:
        found = Found(None) if resume is None else _found(plan, resume, lock, look)
    weights, skipped = plan.weights, list(found.passed_over)
    changed: list[str] = []
    if found.entry is not None:
        also, changed = changes_since(plan, found.entry)
        notices = [f"going on from {found.entry.path}", *also]
    else:
        notices = list(found.notices)
        weights, passed_over = settled_weights(plan.weights, look)
        skipped += passed_over
    run_dir, elsewhere = found.run, None
    try:
        if run_dir is None:
            run_dir = new_run_dir(plan, folder)
            if plan.logging.checkpoints is not None:
                elsewhere = claim(plan.logging.checkpoints, plan.name, run_dir)
            if found.entry is not None:
                notices[0] = f"going on from {found.entry.path} in a new folder, {run_dir}, as {found.why}"
        else:
            elsewhere = external_root(run_dir)
            notices += dir_notices(plan.logging.checkpoints, run_dir)
        if not lock.is_held:
            notices += filter(None, [lock.take(run_dir)])
        if found.run is not None and lock.is_held:
            CheckpointStore(checkpoints_root(str(run_dir))).clean()
        shutil.rmtree(run_dir / "failures", ignore_errors=True)  # of an earlier session
        _save_plan(plan, run_dir)
        _save_run(plan, run_dir, elsewhere)
    except OSError as error:
        path = run_dir or folder or _runs(plan)
        key = "`logging.dir`" if folder is None else "`--run-dir`"
        raise RunFailure(
            f"the run's folder {path} cannot be made: {_reason(path, error)}; help: let {key} name a folder "
            "that can be written, on a disk with room"
        ) from None
    warnings = (*(f"passed over: {reason}" for reason in skipped), *changed)
    return Place(run_dir, found.entry, weights, tuple(notices), warnings, elsewhere)


def _reason(path: Path, error: OSError) -> str:
    in_the_way = [place for place in (path, *path.parents) if os.path.exists(place) and not os.path.isdir(place)]
    return f"{in_the_way[0]} is a file" if in_the_way else (error.strerror or str(error)).lower()


def _save_plan(plan: Plan, run_dir: Path) -> None:
    """That of an earlier session under another layout is kept beside it."""
    path, text = run_dir / PLAN, to_saved_json(plan)
    if path.exists() and path.read_text(encoding="utf-8") != text:
        number = 1
        while (older := path.with_name(f"plan.{number}.json")).exists():
            number += 1
        path.rename(older)
    save(plan, path)


def _save_run(plan: Plan, run_dir: Path, elsewhere: str | None) -> None:
    """What a list of runs says of this one: a plan may take long to read. The time is that of its first session."""
    begun = read_run(run_dir).get("started_unix_s", time.time())
    mode = {"mode": plan.layout.mode, "num_ranks": len(plan.layout.ranks)}
    entries = {"name": plan.name, **mode, "num_steps": plan.training.num_steps, "started_unix_s": begun}
    if elsewhere is not None:
        entries["checkpoints"] = elsewhere
    entries |= {"overrides": plan.overrides, "settings": plan.settings}
    text = json.dumps(in_texts(with_names, entries), indent=1)
    (run_dir / RUN).write_text(f"{text}\n", encoding="utf-8")


def changes_since(plan: Plan, entry: Entry) -> tuple[list[str], list[str]]:
    """(notices, warnings) on what the recipe has changed since a checkpoint. Raises CheckpointFailure, with what and
    why, when it would be another run."""
    if entry.manifest["fingerprint"] == plan.fingerprint:
        return [], []
    before, why = _plan_of(entry)
    if before is None:
        raise _another_run(entry, [f"its model, data, objective, batch or training was another ({why})"])
    verdict = judge(before, plan, entry.step)
    if verdict.refused:
        raise _another_run(entry, verdict.refused)
    warnings = [f"since the checkpoint of step {entry.step:,}, {sentence}" for sentence in verdict.warned]
    return [f"since the checkpoint of step {entry.step:,}, {sentence}" for sentence in verdict.free], warnings


def _another_run(entry: Entry, reasons: Sequence[str]) -> CheckpointFailure:
    rest = f", and {counted(len(reasons) - MOST_CHANGES, 'more change')}" if len(reasons) > MOST_CHANGES else ""
    return CheckpointFailure(
        f"the checkpoint {entry.path} is of another run: {', '.join(reasons[:MOST_CHANGES])}{rest}; help: run the "
        "recipe as it was, or start anew from its weights with `model.weights`"
    )


def _plan_of(entry: Entry) -> tuple[Plan | None, str]:
    """Return the plan under which a checkpoint was saved, or the reason why it cannot be compared."""
    try:
        return from_json(CheckpointStore(entry.path).text(f"{entry.path}/{PLAN}")), ""
    except OSError:
        return None, "its plan is no longer there to say which"
    except PlanError as problem:
        return None, f"which of them cannot be said: {PLAN} is of another dtrain: {problem}"


def _runs(plan: Plan) -> Path:
    return Path(plan.logging.dir) / plan.name


def new_run_dir(plan: Plan, folder: Path | None = None) -> Path:
    """An empty folder that no other run has, though it may start in the same instant; or `folder`, made where it is not
    there. Raises OSError."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    runs, now = _runs(plan), time.strftime("%Y%m%d-%H%M%S")
    runs.mkdir(parents=True, exist_ok=True)
    path, number = runs / f"{now}-{_label(plan, runs)}", 1
    while True:
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
            path = path.with_name(f"{now}-{_label(plan, runs)}-{number}")
        else:
            return path


def _label(plan: Plan, runs: Path) -> str:
    """Against the first run that is still there, so that the same recipe is called the same every time."""
    asked = asked_for(plan.overrides, plan.settings)
    for path in sorted(runs.iterdir()):
        first = read_run(path).get("settings")
        if isinstance(first, dict) and first:
            others = {
                key: plan.settings[key]
                for key in differing([first, plan.settings])
                if key in plan.settings and key in first
            }
            return label(plan.layout.mode, asked, others)
    return label(plan.layout.mode, asked)


def _in_folder(folder: Path, goes_on: bool, lock: RunLock, look: Look) -> Found:
    """A folder that was given: what it holds is gone on with, or there is nothing in it. Raises RunFailure."""
    if not goes_on:
        if (folder / PLAN).exists() or (folder / CHECKPOINTS).exists():  # wherever its checkpoints are, it has a plan
            raise RunFailure(
                f"{folder} holds a run already; help: add --resume to go on with it, or name another folder"
            )
        return Found(None)
    found = _in_run(checkpoints_root(str(folder)), lock, look)
    return found or Found(None, notices=(f"nothing to resume in {folder}: starting from the beginning",))


def _found(plan: Plan, resume: str, lock: RunLock, look: Look) -> Found:
    if resume == "auto":
        runs = _runs(plan)
        notice = f"nothing to resume below {runs}: starting from the beginning"
        return _in_runs(runs, lock, look) or _of_lost_runs(plan, look) or Found(None, notices=(notice,))
    return _given(plan, resume.rstrip("/"), lock, look)


def _given(plan: Plan, path: str, lock: RunLock, look: Look) -> Found:
    """A checkpoint's folder, a run's folder or that of its checkpoints, or the folder of a recipe's runs."""
    path = path if "/" in path else f"./{path}"
    root, _, name = path.rpartition("/")
    if CheckpointStore(path).has(f"{path}/{MANIFEST}") or (
        name.startswith("step_") and CheckpointStore(root).has(path)
    ):
        return _at(path, lock, look)
    own = checkpoints_root(path)
    is_run = own != f"{path}/{CHECKPOINTS}" or CheckpointStore(path).has(own)
    found = _in_run(own if is_run else path, lock, look)
    if found is None and "://" not in path:
        found = _in_runs(Path(path), lock, look)
    if found is None:
        raise RunFailure(
            f"no checkpoint in {path}; help: give a run's folder ({_runs(plan)}/<time>-...), a checkpoint's "
            f"(.../{CHECKPOINTS}/step_<number>), or `--resume auto`"
        )
    return found


def _in_runs(runs: Path, lock: RunLock, look: Look) -> Found | None:
    """The newest of a recipe's runs that has a whole checkpoint. Raises RunFailure when a newer one is going on."""
    passed_over: list[str] = []
    for run in map(Path, newest_first(str(path) for path in runs.glob("*") if path.is_dir())):
        root = checkpoints_root(str(run))
        if not (run / LOCK).exists() and root == str(run / CHECKPOINTS) and not os.path.isdir(root):
            continue
        try:
            found = _in_run(root, lock, look)
        except NoWholeCheckpoint as failure:
            passed_over += failure.reasons
            found = None
        if found is not None:
            return replace(found, passed_over=(*passed_over, *found.passed_over))
        lock.release()
    if passed_over:
        raise NoWholeCheckpoint(str(runs), passed_over)
    return None


def _in_run(root: str, lock: RunLock, look: Look) -> Found | None:
    """The newest whole checkpoint of a run continues that run; one from elsewhere begins another."""
    run = owner_of(root)
    if run is not None and Path(run).is_dir():
        lock.take(Path(run))
    entry, reasons = CheckpointStore(root).newest(look)
    if entry is None:
        if reasons:
            raise NoWholeCheckpoint(run or root, reasons)
        return None
    if run is not None:
        return Found(entry, Path(run), passed_over=tuple(reasons))
    return Found(entry, None, "that is not in the folder of a run here", passed_over=tuple(reasons))


def _at(path: str, lock: RunLock, look: Look) -> Found:
    """An older checkpoint begins another run, so that nothing that was saved is overwritten."""
    root, _, _ = path.rpartition("/")
    store = CheckpointStore(root)
    try:
        entry = read_entry(path)
        reason = look(entry)
    except CheckpointFailure as failure:
        reason = str(failure)
    if reason is not None:
        others = [other.path for other in store.entries()[0] if other.path != path and look(other) is None]
        hint = f"; help: {_listed(others)} {'is' if len(others) == 1 else 'are'} whole" if others else ""
        raise CheckpointFailure(f"{reason}{hint}")
    run = owner_of(root)
    newest = store.entries()[0][0].step
    if run is not None and newest == entry.step:
        lock.take(Path(run))
        return Found(entry, Path(run))
    why = f"that run has gone on to step {newest}" if newest > entry.step else "that is not in the folder of a run here"
    return Found(entry, None, why)


def _of_lost_runs(plan: Plan, look: Look) -> Found | None:
    """Of a run of this recipe whose folder is not here: its machine is gone, or is another one. A new run goes on from
    it, since nobody could tell whether that one still writes."""
    if plan.logging.checkpoints is None:
        return None
    entry, reasons = newest_below(plan.logging.checkpoints, plan.name, look)
    if entry is None and reasons:
        raise NoWholeCheckpoint(shown(plan.logging.checkpoints), reasons)
    why = "that is not in the folder of a run here"
    return None if entry is None else Found(entry, None, why, passed_over=tuple(reasons))


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
