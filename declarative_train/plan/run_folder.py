"""Where runs keep their checkpoints, and what a plan may know of one: the shapes in its manifest."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

MANIFEST = "manifest.json"  # of a checkpoint
FORMAT = 2
CHECKPOINTS = "checkpoints"  # of a run

Shapes = Mapping[str, tuple[int, ...]]


def shapes_in_folder(path: str) -> Shapes | None:
    """Those of the checkpoint that a run would take, as its manifest has them; None when it has not (an earlier dtrain
    wrote it). Raises ValueError when there is no whole checkpoint."""
    if os.path.lexists(os.path.join(path, MANIFEST)):
        found = _manifest_in(path)
        return None if found is None else _shapes_of(found.get("shapes"))
    for folder in run_folders(path):
        manifests = [manifest for each in _checkpoints_in(folder) if (manifest := _manifest_in(each)) is not None]
        if manifests:
            taken = manifests[position_of_best([each.get("step") for each in manifests], manifests[0])]
            return _shapes_of(taken.get("shapes"))
    raise ValueError("no whole checkpoint of a run is in it")


def run_folders(path: str) -> list[str]:
    """Where checkpoints are looked for: in a run's folder, else in those of a recipe's runs, newest first."""
    inside = sorted((entry.path for entry in os.scandir(path) if entry.is_dir()), reverse=True)
    return [path, *inside]


def position_of_best(steps: Sequence[int | None], newest: Mapping[str, Any]) -> int:
    """Of a run's checkpoints, newest first: the best one, as the newest tells; the newest where it is not there."""
    state = newest.get("state")
    best = state.get("best_step") if isinstance(state, dict) else None
    return steps.index(best) if best in steps else 0


def _shapes_of(entry: object) -> Shapes | None:
    if not isinstance(entry, dict) or not all(isinstance(shape, list) for shape in entry.values()):
        return None
    if any("\ud800" <= character <= "\udfff" for name in entry for character in name):
        return None  # half a character, which could not be shown
    return {name: tuple(shape) for name, shape in entry.items()}


def _checkpoints_in(run: str) -> list[str]:
    """Newest first."""
    root = os.path.join(run, CHECKPOINTS)
    if not os.path.isdir(root):
        return []
    return sorted((entry.path for entry in os.scandir(root) if entry.name.startswith("step_")), reverse=True)


def _manifest_in(path: str) -> dict[str, Any] | None:
    """None when it cannot be read, or when the checkpoint is torn: files are missing, or have other sizes."""
    file = os.path.join(path, MANIFEST)
    if not os.path.isfile(file):  # reading a pipe might never end
        return None
    try:
        with open(file, encoding="utf-8") as stream:
            found = json.load(stream)
        if found["format"] != FORMAT:
            return None
        for name, record in found["files"].items():
            if os.stat(os.path.join(path, name)).st_size != record["size_bytes"]:
                return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return dict(found)
