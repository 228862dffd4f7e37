"""Folders for checkpoints outside the run's folder: below `checkpoint.dir`, which is a path or an fsspec URL.

<checkpoint.dir>/<name>/<run>/owner.json           names the run's folder, on the machine that has it
                              checkpoints/step_00000120/

A run keeps the folder for checkpoints with which it began (its `run.json` names it). Two runs never share one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from declarative_train.engine.checkpoints.store import CheckpointEntry, CheckpointStore, DamageCheck
from declarative_train.engine.failures import RunFailure
from declarative_train.files.open_files import file_system, format_path, local_path
from declarative_train.files.paths import SourceError
from declarative_train.plan.checkpoint_files import CHECKPOINTS, OWNER, checkpoints_root, sort_newest_first


def claim(folder: str, name: str, run_dir: Path) -> str:
    """Create an empty folder below `folder` for the checkpoints of one run, and return its path. `name`: the recipe's
    name. Runs that start at the same time, even on other machines, get different folders. If the folder cannot be
    created, remove `run_dir`, the run's own folder, if it is empty, and raise RunFailure."""
    try:
        with _explain_errors():
            return _create(folder, name, run_dir)
    except OSError as error:
        if not any(run_dir.iterdir()):
            run_dir.rmdir()
        raise RunFailure(
            f"the folder for checkpoints {format_path(folder)} cannot be created: {error}; help: set "
            "`checkpoint.dir` to a writable folder or URL, or remove it"
        ) from None


def _create(folder: str, name: str, run_dir: Path) -> str:
    base, owner = f"{_absolute(folder)}/{name}", json.dumps({"folder": str(run_dir.absolute())}).encode()
    if local_path(folder) is None:
        # an object store cannot create a folder exclusively
        place = f"{base}/{run_dir.name}-{uuid4().hex[:6]}"
        fs, inner = file_system(place)
        fs.makedirs(inner, exist_ok=True)
        fs.pipe_file(f"{inner}/{OWNER}", owner)
        return f"{place}/{CHECKPOINTS}"
    path, number = Path(base, run_dir.name), 1
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        try:
            path.mkdir()
            break
        except FileExistsError:
            number += 1
            path = path.with_name(f"{run_dir.name}-{number}")
    (path / OWNER).write_bytes(owner)
    return f"{path}/{CHECKPOINTS}"


@contextmanager
def _explain_errors() -> Iterator[None]:
    """Convert any exception of a file system or object store to an OSError with a short reason."""
    try:
        yield
    except OSError as error:
        place = next((path for path in _above(error.filename) if os.path.exists(path)), None)
        is_file = place is not None and not os.path.isdir(place)
        raise OSError(f"{place} is a file" if is_file else (error.strerror or str(error)).lower()) from None
    except SourceError as error:
        raise OSError(str(error)) from None
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from None


def _above(path: object) -> list[Path]:
    return [] if not isinstance(path, str) else [Path(path), *Path(path).parents]


def external_root(run_dir: Path) -> str | None:
    """Return the folder in which the run in `run_dir` saves its checkpoints, if it is outside `run_dir`; otherwise
    None."""
    root = checkpoints_root(str(run_dir))
    return None if root == f"{run_dir}/{CHECKPOINTS}" else root


def dir_notices(folder: str | None, run_dir: Path) -> list[str]:
    """Return a notice if `checkpoint.dir` in the recipe was changed since the run began, else []. The change has no
    effect: a run keeps its first folder for checkpoints. `folder`: present value of `checkpoint.dir`."""
    root = external_root(run_dir)
    begins = None if root is None else root.rsplit("/", 3)[0]
    if begins == (None if folder is None else _absolute(folder)):
        return []
    return [f"the checkpoints remain in {format_path(root or str(run_dir))}: `checkpoint.dir` is for new runs"]


def newest_below(folder: str, name: str, look: DamageCheck) -> tuple[CheckpointEntry | None, list[str]]:
    """Return the newest undamaged checkpoint of a recipe's runs (or None), and the reasons why newer checkpoints were
    skipped. The runs of the recipe `name` below `folder` are searched from the newest to the oldest, until one has such
    a checkpoint. `look`: the check for damage."""
    passed_over: list[str] = []
    for place in sort_newest_first(CheckpointStore(f"{_absolute(folder)}/{name}").folders()):
        entry, reasons = CheckpointStore(f"{place}/{CHECKPOINTS}").newest(look)
        passed_over += reasons
        if entry is not None:
            return entry, passed_over
    return None, passed_over


def _absolute(folder: str) -> str:
    """Return a local folder as an absolute path, or a URL without a `/` at its end."""
    local = local_path(folder)
    return folder.rstrip("/") if local is None else os.path.abspath(local)
