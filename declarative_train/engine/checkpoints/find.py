"""Choice of the checkpoint whose weights are read, for `model.weights` and for commands that use a trained model. The
user gives the path of a checkpoint, of a run's folder, or of the folder of all runs of a recipe.

A resume chooses its checkpoint in `run/storage/run_dir.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from declarative_train.engine.checkpoints.store import CheckpointEntry, CheckpointStore, DamageCheck, damage, read_entry
from declarative_train.engine.failures import CheckpointFailure, RunFailure
from declarative_train.files.weight_files import KINDS
from declarative_train.plan.checkpoint_files import MANIFEST, checkpoints_root, find_best_position, run_folders

if TYPE_CHECKING:
    from declarative_train.plan.plan import WeightsPlan


class NoWholeCheckpoint(CheckpointFailure):
    """Failure: all checkpoints at a path are unfinished or damaged."""

    def __init__(
        self, where: str, reasons: Iterable[str], hint: str = "without --resume a new run starts from the beginning"
    ) -> None:
        self.reasons = tuple(reasons)
        super().__init__(f"no complete checkpoint in {where}: {'; '.join(self.reasons)}; help: {hint}")


class NoCheckpoint(CheckpointFailure):
    """Failure: there is no checkpoint at a path."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} has no checkpoint")


def find_checkpoint(path: str, look: DamageCheck = damage) -> tuple[CheckpointEntry, list[str]]:
    """Return the checkpoint to load from `path`, and the reasons why others were skipped. `path`: a checkpoint, the
    folder of a run, or a folder of runs. Of a run it is the best undamaged checkpoint, or the newest if none is marked
    as best. Of several runs, the newest is searched first. `look`: function that checks a checkpoint for damage. Raises
    NoWholeCheckpoint if all checkpoints are damaged or unfinished, and NoCheckpoint if there is none."""
    path = path.rstrip("/")
    reasons: list[str] = []
    if CheckpointStore(path).has(f"{path}/{MANIFEST}"):
        entry = read_entry(path)
        reason = look(entry)
        if reason is None:
            return entry, []
        reasons.append(reason)
    else:
        for run in run_folders(path) if Path(path).is_dir() else [path]:
            whole, skipped = CheckpointStore(checkpoints_root(run)).entries()
            reasons += skipped
            while whole:
                entry = whole.pop(find_best_position([entry.step for entry in whole], whole[0].manifest))
                reason = look(entry)
                if reason is None:
                    return entry, reasons
                reasons.append(reason)
    if reasons:
        raise NoWholeCheckpoint(path, reasons, "use another run, or another of its checkpoints")
    raise NoCheckpoint(path)


def resolve_weights(plans: Iterable[WeightsPlan], look: DamageCheck) -> tuple[tuple[WeightsPlan, ...], list[str]]:
    """Replace each path of a run in the entries `plans` of `model.weights` by the path of the run's best undamaged
    checkpoint (see `find_checkpoint`). Return the entries, and the reasons why others were skipped. The paths of files
    are unchanged. `look`: function that checks a checkpoint for damage. Raises RunFailure if a path has no weights."""
    resolved: list[WeightsPlan] = []
    passed_over: list[str] = []
    for plan in plans:
        if plan.path.endswith(KINDS):
            resolved.append(plan)
            continue
        try:
            entry, reasons = find_checkpoint(plan.path, look)
        except NoWholeCheckpoint as failure:
            raise RunFailure(f"model.weights: {failure}") from None
        except NoCheckpoint:
            raise RunFailure(
                f"model.weights: {plan.path} has no weights; help: give a .safetensors or .pt file, or a run's folder"
            ) from None
        resolved.append(replace(plan, path=entry.path))
        passed_over += [f"model.weights: {reason}" for reason in reasons]
    return tuple(resolved), passed_over
