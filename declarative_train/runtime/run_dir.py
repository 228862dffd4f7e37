"""The folder of a run, and which folder and checkpoint `--resume` means.

<logging.dir>/<name>/<timestamp>/
    plan.json  events.jsonl  events.out.tfevents.*  checkpoints/step_00000120/  failures/
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from declarative_train.runtime.checkpoint_store import MANIFEST, CheckpointStore, Entry, read_entry
from declarative_train.runtime.failures import CheckpointFailure, RunFailure

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan

CHECKPOINTS = "checkpoints"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run writes, and the checkpoint it goes on from."""

    run_dir: Path
    entry: Entry | None
    notices: tuple[str, ...] = ()


def find_place(plan: Plan, resume: str | None) -> Place:
    """Nothing is written. Raises RunFailure when a path was given that holds no checkpoint."""
    if resume is None:
        return Place(new_run_dir(plan), None)
    if resume == "auto":
        return _newest(plan)
    return _given(plan, resume)


def make_run_dir(path: Path) -> None:
    """Raises OSError."""
    path.mkdir(parents=True, exist_ok=True)


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
    notice = f"going on from {entry.path}"
    if folder == CHECKPOINTS and "://" not in run and whole and whole[0].step == entry.step:
        return Place(Path(run), entry, (notice,))
    return Place(new_run_dir(plan), entry, (f"{notice}, in a new run folder",))
