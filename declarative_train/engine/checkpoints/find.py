"""A path -> the checkpoint that a model is taken from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from declarative_train.engine.checkpoints.store import CheckpointStore, Entry, Look, damage, read_entry
from declarative_train.engine.failures import CheckpointFailure, RunFailure
from declarative_train.plan.run_folder import MANIFEST, checkpoints_root, position_of_best, run_folders

if TYPE_CHECKING:
    from declarative_train.plan.plan import WeightsPlan


class NoWholeCheckpoint(CheckpointFailure):
    """There are checkpoints, and none that could be used."""

    def __init__(
        self, where: str, reasons: Iterable[str], hint: str = "without --resume a new run starts from the beginning"
    ) -> None:
        self.reasons = tuple(reasons)
        super().__init__(f"no whole checkpoint in {where}: {'; '.join(self.reasons)}; help: {hint}")


class NoCheckpoint(CheckpointFailure):
    """A path at which there is none at all."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} holds no checkpoint")


def find_checkpoint(path: str, look: Look = damage) -> tuple[Entry, list[str]]:
    """Of a run's folder (the best, else the newest), the folder of a recipe's runs (the newest run) or a checkpoint's:
    the one to take the model from, and why others were passed over. Raises NoWholeCheckpoint where all are damaged, and
    NoCheckpoint where there is none."""
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
            whole, torn = CheckpointStore(checkpoints_root(run)).entries()
            reasons += torn
            while whole:
                entry = whole.pop(position_of_best([entry.step for entry in whole], whole[0].manifest))
                reason = look(entry)
                if reason is None:
                    return entry, reasons
                reasons.append(reason)
    if reasons:
        raise NoWholeCheckpoint(path, reasons, "take another run, or another of its checkpoints")
    raise NoCheckpoint(path)


def settled_weights(plans: Iterable[WeightsPlan], look: Look) -> tuple[tuple[WeightsPlan, ...], list[str]]:
    """(start values whose folders have become the checkpoint that is taken, why others were passed over)."""
    settled: list[WeightsPlan] = []
    passed_over: list[str] = []
    for plan in plans:
        from declarative_train.plan.weights import KINDS  # which knows the layers

        if plan.path.endswith(KINDS):
            settled.append(plan)
            continue
        try:
            entry, reasons = find_checkpoint(plan.path, look)
        except NoWholeCheckpoint as failure:
            raise RunFailure(f"model.weights: {failure}") from None
        except NoCheckpoint:
            raise RunFailure(
                f"model.weights: {plan.path} holds no weights; help: give a .safetensors or .pt file, or a run's folder"
            ) from None
        settled.append(replace(plan, path=entry.path))
        passed_over += [f"model.weights: {reason}" for reason in reasons]
    return tuple(settled), passed_over
