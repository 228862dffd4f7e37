"""Folder of a run, and the run and checkpoint that `--resume` continues.

<logging.dir>/<name>/<time>-<mode>-<what differs>/
    run.json  plan.json  events.jsonl  events.out.tfevents.*  checkpoints/step_00000120/  failures/  lock
<checkpoint.dir>/<name>/<the same>/              if the recipe sets it: a folder, or a URL
    owner.json  checkpoints/step_00000120/

The process that starts the ranks decides three things before they load anything: which run is continued, that no other
process writes to this run, and which is its newest undamaged checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from declarative_train.core.amounts import format_count
from declarative_train.core.names import RUN
from declarative_train.core.secrets import in_texts, with_names
from declarative_train.engine.checkpoints.find import NoWholeCheckpoint, resolve_weights
from declarative_train.engine.checkpoints.store import CheckpointEntry, CheckpointStore, DamageCheck, damage, read_entry
from declarative_train.engine.failures import CheckpointFailure, RunFailure, first_line
from declarative_train.files.open_files import format_path
from declarative_train.plan.checkpoint_files import (
    CHECKPOINTS,
    MANIFEST,
    PLAN,
    TIME_LENGTH,
    checkpoints_root,
    owner_of,
    read_run,
    sort_newest_first,
)
from declarative_train.plan.codec import PlanError, from_json, save, to_saved_json
from declarative_train.plan.resume_rules import judge
from declarative_train.plan.settings import find_differing, label, select_overridden
from declarative_train.run.storage.checkpoint_dir import claim, dir_notices, external_root, newest_below
from declarative_train.run.storage.remote_dir import fetch_run, place_for
from declarative_train.run.storage.run_lock import LOCK, RunLock

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan, WeightsPlan

TIME = "%Y%m%d-%H%M%S"
_NO_RUN_HERE = "the checkpoint is not in a run's folder on this machine"
MOST_CHANGES = 5  # changes of a recipe since a checkpoint that a message names


@dataclass(frozen=True, slots=True)
class RunPlace:
    """Folder of a run, and the state from which the run starts. This is a checkpoint (`entry`) or, if `entry` is None,
    the initial `weights` of the plan. `notices`, `warnings`: lines to print about this choice."""

    run_dir: Path
    entry: CheckpointEntry | None
    weights: tuple[WeightsPlan, ...] = ()
    notices: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    elsewhere: str | None = None  # folder or URL of its checkpoints, if they are not in `run_dir`

    @property
    def checkpoints(self) -> str:
        return self.elsewhere or str(self.run_dir / CHECKPOINTS)


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Point from which a run starts. `entry`: the checkpoint that is loaded; None: the run starts from the beginning.
    `run`: folder of the run that is continued; None: a new run starts. `why`: the reason why a new run starts from a
    checkpoint. `passed_over`: for each newer checkpoint that was skipped, the reason."""

    entry: CheckpointEntry | None
    run: Path | None = None
    why: str = ""
    notices: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()


def open_place(
    plan: Plan, resume: str | None, lock: RunLock, look: DamageCheck = damage, folder: Path | None = None
) -> RunPlace:
    """Create or find the run's folder, lock it and write the plan to it. Return it with the checkpoint to start from.

    `resume`  path of a run or checkpoint, `auto` for the newest run that can be continued, or None for a new run
    `look`    function that takes a checkpoint and returns the reason to skip it, or None
    `folder`  the run's folder, continued with `resume`; None: a new folder among the runs of the recipe

    Raises RunFailure if the plan cannot continue from `resume`, if another process runs this run, or if the folder
    cannot be written.
    """
    copied = _fetch(plan, folder) if resume is not None else None
    if folder is not None:
        found = _find_in_folder(folder, resume is not None, lock, look)
    else:
        found = ResumePoint(None) if resume is None else _find(plan, resume, lock, look)
    weights, skipped = plan.weights, list(found.passed_over)
    changed: list[str] = []
    if found.entry is not None:
        also, changed = changes_since(plan, found.entry)
        notices = [f"continuing from {found.entry.path}", *also]
    else:
        notices = list(found.notices)
        weights, passed_over = resolve_weights(plan.weights, look)
        skipped += passed_over
    run_dir, elsewhere = found.run, None
    try:
        if run_dir is None:
            run_dir = new_run_dir(plan, folder)
            if plan.logging.checkpoints is not None:
                elsewhere = claim(plan.logging.checkpoints, plan.name, run_dir)
            if found.entry is not None:
                notices[0] = f"continuing from {found.entry.path} in a new folder, {run_dir}, because {found.why}"
        else:
            elsewhere = external_root(run_dir)
            notices += dir_notices(plan.logging.checkpoints, run_dir)
        if not lock.is_held:
            notices += filter(None, [lock.take(run_dir)])
        if found.run is not None and lock.is_held:
            CheckpointStore(checkpoints_root(str(run_dir))).clean()
        shutil.rmtree(run_dir / "failures", ignore_errors=True)  # of an earlier session
        _save_plan(plan, run_dir)
        remote = _remote_url(plan, run_dir, elsewhere)
        _save_run(plan, run_dir, elsewhere, remote)
    except OSError as error:
        path = run_dir or folder or _runs(plan)
        key = "`logging.dir`" if folder is None else "`--run-dir`"
        raise RunFailure(
            f"the run's folder {path} cannot be created: {_reason(path, error)}; help: set {key} to a writable "
            "folder on a disk with free space"
        ) from None
    if remote is not None:
        lock.upload(run_dir, remote)
        notices += [*filter(None, [copied]), f"{run_dir} is copied to {format_path(remote)}"]
    warnings = (*(f"skipped: {reason}" for reason in skipped), *changed)
    entry = None if found.entry is None else found.entry.without_files()  # the entry is sent to every node
    return RunPlace(run_dir, entry, weights, tuple(notices), warnings, elsewhere)


def _reason(path: Path, error: OSError) -> str:
    files = [place for place in (path, *path.parents) if os.path.exists(place) and not os.path.isdir(place)]
    return f"{files[0]} is a file" if files else (error.strerror or str(error)).lower()


def _save_plan(plan: Plan, run_dir: Path) -> None:
    """Write the plan to the run's folder. The plan of an earlier session, if it differs, is renamed to
    `plan.<n>.json`."""
    path = run_dir / PLAN
    if path.exists() and path.read_text(encoding="utf-8") != to_saved_json(plan):
        number = 1
        while (older := path.with_name(f"plan.{number}.json")).exists():
            number += 1
        path.rename(older)
    save(plan, path)


def _fetch(plan: Plan, folder: Path | None) -> str | None:
    """Copy a run from the URL in `logging.dir` to this machine. Return a notice, or None if nothing was copied: it is
    no URL, it has no such run, or the local event file is at least as large. `folder`: the run's local folder; None:
    copy the newest run of the recipe. Raises RunFailure if the URL cannot be read."""
    remote = plan.logging.remote
    if remote is None:
        return None
    try:
        return fetch_run(remote, plan.name, _runs(plan), folder)
    except Exception as error:  # the client of each store has its own exceptions
        raise RunFailure(f"the runs at {format_path(remote)} cannot be read: {first_line(error)}") from None


def _remote_url(plan: Plan, run_dir: Path, elsewhere: str | None) -> str | None:
    """Return the URL to which this run's folder is copied; None if it is not copied. A resumed run keeps its URL.
    `elsewhere`: folder of the run's checkpoints, if it is outside the run's folder."""
    kept = read_run(run_dir).get("remote")
    if kept is not None or plan.logging.remote is None:
        return kept
    return place_for(plan.logging.remote, plan.name, run_dir, elsewhere)


def _save_run(plan: Plan, run_dir: Path, elsewhere: str | None, remote: str | None) -> None:
    """Write `run.json`, a summary of the run for lists of runs, because reading a whole plan is slow. `elsewhere`:
    folder of the run's checkpoints, if it is not in the run's folder. `remote`: URL to which the run's folder is
    copied, or None. The time in the summary is the start of the first session."""
    begun = read_run(run_dir).get("started_unix_s", time.time())
    mode = {"mode": plan.layout.mode, "num_ranks": len(plan.layout.ranks)}
    entries = {"name": plan.name, **mode, "num_steps": plan.training.num_steps, "started_unix_s": begun}
    if elsewhere is not None:
        entries["checkpoints"] = elsewhere
    if remote is not None:
        entries["remote"] = remote
    entries |= {"overrides": plan.overrides, "settings": plan.settings}
    text = json.dumps(in_texts(with_names, entries), indent=1)
    (run_dir / RUN).write_text(f"{text}\n", encoding="utf-8")


def changes_since(plan: Plan, entry: CheckpointEntry) -> tuple[list[str], list[str]]:
    """Return (notices, warnings): sentences about changes of the recipe since a checkpoint was saved. Raises
    CheckpointFailure if a run may not resume after such a change."""
    if entry.manifest["fingerprint"] == plan.fingerprint:
        return [], []
    before, why = _plan_of(entry)
    if before is None:
        raise _another_run(entry, [f"its model, data, objective, batch or training was different ({why})"])
    verdict = judge(before, plan, entry.step)
    if verdict.refused:
        raise _another_run(entry, verdict.refused)
    warnings = [f"since the checkpoint of step {entry.step:,}, {sentence}" for sentence in verdict.warned]
    return [f"since the checkpoint of step {entry.step:,}, {sentence}" for sentence in verdict.free], warnings


def _another_run(entry: CheckpointEntry, reasons: Sequence[str]) -> CheckpointFailure:
    rest = f", and {format_count(len(reasons) - MOST_CHANGES, 'more change')}" if len(reasons) > MOST_CHANGES else ""
    return CheckpointFailure(
        f"the checkpoint {entry.path} belongs to another run: {', '.join(reasons[:MOST_CHANGES])}{rest}; help: run the "
        "recipe as it was, or start a new run from its weights with `model.weights`"
    )


def _plan_of(entry: CheckpointEntry) -> tuple[Plan | None, str]:
    """Return the plan with which a checkpoint was saved, and "". If it cannot be read, return None and the reason."""
    try:
        return from_json(CheckpointStore(entry.path).text(f"{entry.path}/{PLAN}")), ""
    except OSError:
        return None, "its plan no longer exists, so it is not known which"
    except PlanError as problem:
        return None, f"it is not known which: {PLAN} was written by another version of dtrain: {problem}"


def _runs(plan: Plan) -> Path:
    return Path(plan.logging.dir) / plan.name


def new_run_dir(plan: Plan, folder: Path | None = None) -> Path:
    """Create an empty folder for a new run, and return it. Runs that start at the same time get different folders.
    `folder`: use this folder, and create it if it does not exist. Raises OSError."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    runs = _runs(plan)
    runs.mkdir(parents=True, exist_ok=True)
    now = _time_of_next(runs)
    path, number = runs / f"{now}-{_label(plan, runs)}", 1
    while True:
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
            path = path.with_name(f"{now}-{_label(plan, runs)}-{number}")
        else:
            return path


def _time_of_next(runs: Path) -> str:
    """Return the time for the name of a new run: now, or one second after the newest run if its name has a later time.
    So names stay in order even if this machine's clock is behind."""
    now = datetime.now()
    for path in runs.iterdir():
        with suppress(ValueError):  # the folder's name does not begin with a time
            begun = datetime.strptime(path.name[:TIME_LENGTH], TIME)
            now = begun + timedelta(seconds=1) if begun > now else now
    return now.strftime(TIME)


def _label(plan: Plan, runs: Path) -> str:
    """Return the last part of the name of a new run's folder. It consists of the mode, and of the main settings that
    come from the command line or differ from those of the oldest run in `runs`."""
    asked = select_overridden(plan.overrides, plan.settings)
    for path in sorted(runs.iterdir()):
        first = read_run(path).get("settings")
        if isinstance(first, dict) and first:
            others = {
                key: plan.settings[key]
                for key in find_differing([first, plan.settings])
                if key in plan.settings and key in first
            }
            return label(plan.layout.mode, asked, others)
    return label(plan.layout.mode, asked)


def _find_in_folder(folder: Path, resumes: bool, lock: RunLock, look: DamageCheck) -> ResumePoint:
    """Return where a run in the user's folder `folder` starts. `resumes`: the user asked to continue the run in it.
    Then it starts from the newest undamaged checkpoint there, or from the beginning if there is none. Without `resumes`
    it starts from the beginning; a RunFailure is raised if the folder already has a run."""
    if not resumes:
        if (folder / PLAN).exists() or (folder / CHECKPOINTS).exists():  # wherever its checkpoints are, it has a plan
            raise RunFailure(
                f"{folder} already contains a run; help: add --resume to continue it, or use another folder"
            )
        return ResumePoint(None)
    found = _find_in_run(checkpoints_root(str(folder)), lock, look)
    return found or ResumePoint(None, notices=(f"nothing to resume in {folder}: starting from the beginning",))


def _find(plan: Plan, resume: str, lock: RunLock, look: DamageCheck) -> ResumePoint:
    if resume == "auto":
        runs = _runs(plan)
        notice = f"nothing to resume below {runs}: starting from the beginning"
        return _find_in_runs(runs, lock, look) or _find_external(plan, look) or ResumePoint(None, notices=(notice,))
    return _find_at_path(plan, resume.rstrip("/"), lock, look)


def _find_at_path(plan: Plan, path: str, lock: RunLock, look: DamageCheck) -> ResumePoint:
    """Return the checkpoint and the run to continue at `path`. `path` may be a checkpoint, a run's folder, its folder
    of checkpoints, or a folder of runs. Raises RunFailure."""
    path = path if "/" in path else f"./{path}"
    root, _, name = path.rpartition("/")
    if CheckpointStore(path).has(f"{path}/{MANIFEST}") or (
        name.startswith("step_") and CheckpointStore(root).has(path)
    ):
        return _resume_checkpoint(path, lock, look)
    own = checkpoints_root(path)
    is_run = own != f"{path}/{CHECKPOINTS}" or CheckpointStore(path).has(own)
    found = _find_in_run(own if is_run else path, lock, look)
    if found is None and "://" not in path:
        found = _find_in_runs(Path(path), lock, look)
    if found is None:
        raise RunFailure(
            f"no checkpoint in {path}; help: use a run's folder ({_runs(plan)}/<time>-...), a checkpoint's "
            f"(.../{CHECKPOINTS}/step_<number>), or `--resume auto`"
        )
    return found


def _find_in_runs(runs: Path, lock: RunLock, look: DamageCheck) -> ResumePoint | None:
    """Return the newest run below `runs` with an undamaged checkpoint, and this checkpoint; None if no run has a
    checkpoint. Raises NoWholeCheckpoint if all checkpoints are damaged, and RunFailure if another process runs this run
    or a newer one."""
    passed_over: list[str] = []
    for run in map(Path, sort_newest_first(str(path) for path in runs.glob("*") if path.is_dir())):
        root = checkpoints_root(str(run))
        if not (run / LOCK).exists() and root == str(run / CHECKPOINTS) and not os.path.isdir(root):
            continue
        try:
            found = _find_in_run(root, lock, look)
        except NoWholeCheckpoint as failure:
            passed_over += failure.reasons
            found = None
        if found is not None:
            return replace(found, passed_over=(*passed_over, *found.passed_over))
        lock.release()
    if passed_over:
        raise NoWholeCheckpoint(str(runs), passed_over)
    return None


def _find_in_run(root: str, lock: RunLock, look: DamageCheck) -> ResumePoint | None:
    """Return the newest undamaged checkpoint of one run, and the run that continues from it: the run itself or, if its
    folder is not on this machine, a new run. Return None if there is no checkpoint. `root`: the run's folder of
    checkpoints. Raises NoWholeCheckpoint if all checkpoints are damaged."""
    run = owner_of(root)
    if run is not None and Path(run).is_dir():
        lock.take(Path(run))
    entry, reasons = CheckpointStore(root).newest(look)
    if entry is None:
        if reasons:
            raise NoWholeCheckpoint(run or root, reasons)
        return None
    if run is not None:
        return ResumePoint(entry, Path(run), passed_over=tuple(reasons))
    return ResumePoint(entry, None, _NO_RUN_HERE, passed_over=tuple(reasons))


def _resume_checkpoint(path: str, lock: RunLock, look: DamageCheck) -> ResumePoint:
    """Return the checkpoint at `path`, which the user chose, and the run that continues from it. This is the run that
    saved the checkpoint. It is a new run if the old one is not on this machine, or has newer checkpoints, which must
    not be overwritten. Raises CheckpointFailure if the checkpoint is damaged."""
    root, _, _ = path.rpartition("/")
    store = CheckpointStore(root)
    try:
        entry = read_entry(path)
        reason = look(entry)
    except CheckpointFailure as failure:
        reason = str(failure)
    if reason is not None:
        others = [other.path for other in store.entries()[0] if other.path != path and look(other) is None]
        hint = f"; help: {_join_names(others)} {'is' if len(others) == 1 else 'are'} undamaged" if others else ""
        raise CheckpointFailure(f"{reason}{hint}")
    run = owner_of(root)
    newest = store.entries()[0][0].step
    if run is not None and newest == entry.step:
        lock.take(Path(run))
        return ResumePoint(entry, Path(run))
    continued = f"the checkpoint's run has continued to step {newest}"
    return ResumePoint(entry, None, continued if newest > entry.step else _NO_RUN_HERE)


def _find_external(plan: Plan, look: DamageCheck) -> ResumePoint | None:
    """Return the newest undamaged checkpoint of this recipe in `checkpoint.dir`, or None. It is called if no run of the
    recipe is on this machine. The checkpoint starts a new run, because its own run may still be running elsewhere.
    Raises NoWholeCheckpoint if all checkpoints are damaged."""
    if plan.logging.checkpoints is None:
        return None
    entry, reasons = newest_below(plan.logging.checkpoints, plan.name, look)
    if entry is None and reasons:
        raise NoWholeCheckpoint(format_path(plan.logging.checkpoints), reasons)
    return None if entry is None else ResumePoint(entry, None, _NO_RUN_HERE, passed_over=tuple(reasons))


def _join_names(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
