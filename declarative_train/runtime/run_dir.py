"""The folder of a run, and which folder and checkpoint `--resume` means.

<logging.dir>/<name>/<timestamp>/
    plan.json  events.jsonl  events.out.tfevents.*  checkpoints/step_00000120/  failures/
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from declarative_train.plan.codec import PlanError, from_json, to_json
from declarative_train.plan.difference import differences
from declarative_train.plan.run_folder import CHECKPOINTS, MANIFEST
from declarative_train.runtime.checkpoint_store import CheckpointStore, Entry, read_entry
from declarative_train.runtime.failures import CheckpointFailure, RunFailure
from declarative_train.terms.amounts import counted

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan

PLAN = "plan.json"
MOST_CHANGES = 5  # that are told when a recipe is no longer that of a checkpoint


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run writes, and the checkpoint it goes on from."""

    run_dir: Path
    entry: Entry | None
    notices: tuple[str, ...] = ()


def find_place(plan: Plan, resume: str | None) -> Place:
    """Nothing is written. Raises RunFailure when a path was given that holds no checkpoint, or one of another run."""
    if resume is None:
        return Place(new_run_dir(plan), None)
    place = _newest(plan) if resume == "auto" else _given(plan, resume)
    if place.entry is not None:
        refuse_another_run(plan, place.entry)
    return place


def make_run_dir(path: Path, plan: Plan) -> None:
    """The folder with the plan in it; that of an earlier session under another layout is kept beside it.

    Raises RunFailure when it cannot be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        _save_plan(plan, path)
    except OSError as error:
        raise RunFailure(
            f"the run's folder {path} cannot be made: {_reason(path, error)}; help: let `logging.dir` name a folder "
            "that can be written, on a disk with room"
        ) from None


def _reason(path: Path, error: OSError) -> str:
    in_the_way = [place for place in (path, *path.parents) if os.path.exists(place) and not os.path.isdir(place)]
    return f"{in_the_way[0]} is a file" if in_the_way else (error.strerror or str(error)).lower()


def _save_plan(plan: Plan, run_dir: Path) -> None:
    path, text = run_dir / PLAN, to_json(plan)
    if path.exists() and path.read_text(encoding="utf-8") != text:
        number = 1
        while (older := path.with_name(f"plan.{number}.json")).exists():
            number += 1
        path.rename(older)
    path.write_text(text, encoding="utf-8")


def refuse_another_run(plan: Plan, entry: Entry) -> None:
    """Raises CheckpointFailure, with what changed, when the recipe decides other numbers than it did."""
    if entry.manifest["fingerprint"] == plan.fingerprint:
        return
    before = _plan_of(entry)
    changes = differences(before, plan) if before is not None else []
    if changes:
        rest = f", and {counted(len(changes) - MOST_CHANGES, 'more change')}" if len(changes) > MOST_CHANGES else ""
        why = f"{', '.join(changes[:MOST_CHANGES])}{rest}"
    else:
        why = "its model, data, objective, batch or training was another"
    raise CheckpointFailure(
        f"the checkpoint {entry.path} is of another run: {why}; help: run the recipe as it was, or start anew from its "
        "weights with `model.weights`"
    )


def _plan_of(entry: Entry) -> Plan | None:
    """The plan under which a checkpoint was saved, where it lies in the folder of its run."""
    run = Path(entry.path).parent.parent
    for path in sorted(run.glob("plan*.json")):
        try:
            plan = from_json(path.read_text(encoding="utf-8"))
        except (OSError, PlanError):
            continue
        if plan.fingerprint == entry.manifest["fingerprint"]:
            return plan
    return None


def new_run_dir(plan: Plan) -> Path:
    """A name that no other run has."""
    stem = Path(plan.logging.dir) / plan.name / time.strftime("%Y%m%d-%H%M%S")
    path, number = stem, 1
    while path.exists():
        number += 1
        path = stem.with_name(f"{stem.name}-{number}")
    return path


def _newest(plan: Plan) -> Place:
    runs = Path(plan.logging.dir) / plan.name
    notices: list[str] = []
    for run in sorted((path for path in runs.glob("*") if path.is_dir()), reverse=True):
        whole, torn = CheckpointStore(str(run / CHECKPOINTS)).entries()
        notices += [f"skipped: {reason}" for reason in torn]
        if whole:
            return Place(run, whole[0], (*notices, f"going on from {whole[0].path}"))
    return Place(new_run_dir(plan), None, (*notices, f"nothing to resume below {runs}: starting from the beginning"))


def _given(plan: Plan, resume: str) -> Place:
    """A checkpoint's folder, a run's folder, or the folder of a recipe's runs (its newest run)."""
    path = resume.rstrip("/")
    store = CheckpointStore(path)
    if store.has(f"{path}/{MANIFEST}"):
        return _continued(plan, read_entry(path))
    for root in (f"{path}/{CHECKPOINTS}", path):
        whole, torn = CheckpointStore(root).entries()
        if whole:
            place = _continued(plan, whole[0])
            return Place(place.run_dir, place.entry, (*(f"skipped: {reason}" for reason in torn), *place.notices))
        if torn:
            raise CheckpointFailure(f"no whole checkpoint in {resume}: {torn[0]}")
    inner = sorted((run for run in Path(path).glob(f"*/{CHECKPOINTS}") if run.is_dir()), reverse=True)
    for root_path in inner:
        whole, _ = CheckpointStore(str(root_path)).entries()
        if whole:
            return _continued(plan, whole[0])
    raise RunFailure(
        f"no checkpoint in {resume}; help: give a run's folder ({plan.logging.dir}/{plan.name}/<time>), a checkpoint's "
        f"(.../{CHECKPOINTS}/step_<number>), or `--resume auto`"
    )


def _continued(plan: Plan, entry: Entry) -> Place:
    """The newest checkpoint of a run continues that run; an older one, or one from elsewhere, begins another, so that
    nothing that was saved is overwritten."""
    root, _, _ = entry.path.rpartition("/")
    run, _, folder = root.rpartition("/")
    whole, _ = CheckpointStore(root).entries()
    last_step = whole[0].step if whole else 0
    if folder == CHECKPOINTS and "://" not in run and last_step == entry.step:
        return Place(Path(run), entry, (f"going on from {entry.path}",))
    went_on = last_step > entry.step
    why = f"that run has gone on to step {last_step}" if went_on else "that is not in the folder of a run here"
    new = new_run_dir(plan)
    return Place(new, entry, (f"going on from {entry.path} in a new folder, {new}, as {why}",))
