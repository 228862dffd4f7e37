"""Checkpoints as files: finding the checkpoints of a run, checking that they are complete, and reading their manifests.

A manifest is a JSON file. Its first key, `sha256`, is the checksum of its own text. `files` has the size and checksum
of every other file in the folder. If several nodes wrote the checkpoint, each wrote a list of its files, and `lists`
has the size and checksum of these lists.

`run/checkpoint.py` saves and loads checkpoints; `engine/checkpoints/` writes and reads the tensors.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from declarative_train.core.amounts import format_count
from declarative_train.core.names import RUN
from declarative_train.core.secrets import with_values
from declarative_train.files.open_files import local_path

MANIFEST = "manifest.json"  # name of the manifest in the folder of a checkpoint
FORMAT = 3
UNSEALED = 2  # older format, in which a manifest has no checksum of its own text
CHECKPOINTS = "checkpoints"  # folder of the checkpoints in the folder of a run
_SEAL = b'{\n "sha256": "'  # first bytes of a manifest
_BLANK = b"0" * 64  # placeholder for the checksum while it is computed
PLAN = "plan.json"  # file in the folder of a run, and in each of its checkpoints
EMA = "ema/"  # prefix of a parameter's name: the tensor of a checkpoint with the parameter's moving average
OWNER = "owner.json"  # file with the folder of the run, next to checkpoints that are stored outside this folder
TIME_LENGTH = len("20261122-104101")  # length of the time with which the name of a run begins

Shapes = Mapping[str, tuple[int, ...]]


def checkpoints_root(run: str) -> str:
    """Return the folder or URL of the checkpoints of the run in folder `run`. It is the one that the run's `run.json`
    names (`checkpoint.dir` of the recipe), otherwise a folder in `run`."""
    found = read_run(run).get("checkpoints")
    return found if isinstance(found, str) and found else f"{run}/{CHECKPOINTS}"


def owner_of(root: str) -> str | None:
    """Return the folder of the run whose checkpoints are in `root`, a folder or URL; None if the run is not on this
    machine."""
    run, _, folder = root.rstrip("/").rpartition("/")
    found = _read_owner(run)
    if found is None:
        return run if folder == CHECKPOINTS and run and local_path(run) == run else None
    return found if os.path.isdir(found) and checkpoints_root(found) == root.rstrip("/") else None


def _read_owner(folder: str) -> str | None:
    """Return the folder of the run to which the checkpoints below `folder` belong, from the file `owner.json`. Return
    None if this file is missing or cannot be read."""
    try:
        if "://" not in folder:
            with open(os.path.join(folder, OWNER), "rb") as file:
                text = file.read()
        else:
            from fsspec.core import url_to_fs

            fs, inner = url_to_fs(folder)
            text = fs.cat_file(f"{inner}/{OWNER}")
        return str(json.loads(text)["folder"])
    except (OSError, ValueError, KeyError, TypeError, ImportError):
        return None


class FoundCheckpoint(NamedTuple):
    """Complete checkpoint in a folder.

    `manifest`: content of its manifest. `read`: function from the path of a file in the folder, local or remote, to the
    content of the file. `run`: folder of the run that wrote the checkpoint; None if unknown.
    """

    folder: str
    manifest: dict[str, Any]
    read: Callable[[str], bytes]
    run: str | None = None


def shapes_in_folder(path: str) -> Shapes | None:
    """Return the shapes of the parameters in the checkpoint at a path, from its manifest. Return None if the manifest
    is on another machine or has no shapes. Raises ValueError if there is no complete checkpoint."""
    if os.path.lexists(os.path.join(path, MANIFEST)):
        found = _manifest_in(path)
        return None if found is None else _shapes_of(found.get("shapes"))
    taken = find_in_folder(path, offline=True)
    return None if taken is None else _shapes_of(taken.manifest.get("shapes"))


def find_in_folder(path: str, *, offline: bool) -> FoundCheckpoint | None:
    """Return the checkpoint to use from a local folder. Raises ValueError if there is no complete checkpoint, and the
    errors of `find_remote`. `offline`: return None instead of reading from another machine.

    checkpoint       this one
    run              the best, or the newest if none is marked as best
    folder of runs   the newest run with a complete checkpoint
    """
    if os.path.lexists(os.path.join(path, MANIFEST)):
        found = _manifest_in(path)
        if found is not None:
            return FoundCheckpoint(path, found, _content)
        raise ValueError("the checkpoint is incomplete")
    for folder in run_folders(path):
        root = checkpoints_root(folder)
        local = local_path(root)
        if local is None and offline:
            return None
        if local is None:
            try:
                return find_remote(root.removesuffix(f"/{CHECKPOINTS}"))._replace(run=folder)
            except ValueError:
                continue
        whole = [(each, manifest) for each in _checkpoints_in(local) if (manifest := _manifest_in(each)) is not None]
        if whole:
            taken, manifest = whole[find_best_position([each.get("step") for _, each in whole], whole[0][1])]
            return FoundCheckpoint(taken, manifest, _content, folder)
    raise ValueError("it has no complete checkpoint")


def find_remote(path: str) -> FoundCheckpoint:
    """Return the checkpoint to use from an fsspec URL of a checkpoint or of a run.

    Raises ValueError if there is no complete checkpoint, and OSError if the URL cannot be read. Raises ImportError if
    the package for this kind of URL is not installed."""
    from fsspec.core import url_to_fs

    fs, inner = url_to_fs(path.rstrip("/"))
    try:
        return _find_on(fs, inner)
    except (ValueError, OSError):
        raise
    except Exception as problem:  # error of the storage's client, such as missing credentials
        raise OSError(str(problem).strip() or type(problem).__name__) from problem


def _find_on(fs: Any, inner: str) -> FoundCheckpoint:
    if fs.exists(f"{inner}/{MANIFEST}"):
        folders = [inner]
    else:
        root = f"{inner}/{CHECKPOINTS}"
        found = (str(each).rstrip("/") for each in (fs.ls(root, detail=False) if fs.exists(root) else ()))
        folders = sorted((each for each in found if each.rsplit("/", 1)[-1].startswith("step_")), reverse=True)
    whole = []
    for folder in folders:
        try:
            whole.append((folder, read_manifest(folder, fs.cat_file, make_sizes_reader(fs))))
        except BadCheckpointError:
            continue
    if not whole:
        raise ValueError("it has no complete checkpoint")
    taken, manifest = whole[find_best_position([each.get("step") for _, each in whole], whole[0][1])]
    return FoundCheckpoint(taken, manifest, fs.cat_file)


def run_folders(path: str) -> list[str]:
    """Return the folders in which to search for checkpoints: `path`, then its subfolders, the newest first."""
    return [path, *sort_newest_first(entry.path for entry in os.scandir(path) if entry.is_dir())]


def sort_newest_first(folders: Iterable[str]) -> list[str]:
    """Sort the folders of runs by the start time in their names, the newest first. Runs that started in the same second
    are sorted by the date of their plan's file."""

    def start_time(folder: str) -> tuple[str, int, str]:
        try:
            written_ns = os.stat(os.path.join(folder, PLAN)).st_mtime_ns
        except OSError:
            written_ns = 0
        name = os.path.basename(folder)
        return name[:TIME_LENGTH], written_ns, name

    return sorted(folders, key=start_time, reverse=True)


def read_run(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the content of the `run.json` in the folder of a run; {} if there is no readable file."""
    try:
        with open(os.path.join(folder, RUN), encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    urls = {name: with_values(found[name]) for name in ("checkpoints", "remote") if isinstance(found.get(name), str)}
    return found | urls


def find_best_position(steps: Sequence[int | None], newest: Mapping[str, Any]) -> int:
    """Return the index of the best checkpoint of a run. It is 0 (the newest) if no checkpoint is marked as best, or if
    the best one was deleted.

    `steps`: the steps of the run's checkpoints, from the newest to the oldest. `newest`: the manifest of the newest
    checkpoint, which has the step of the best one.
    """
    state = newest.get("state")
    best = state.get("best_step") if isinstance(state, dict) else None
    return steps.index(best) if best in steps else 0


def _shapes_of(entry: object) -> Shapes | None:
    if not isinstance(entry, dict) or not all(isinstance(shape, list) for shape in entry.values()):
        return None
    if any("\ud800" <= character <= "\udfff" for name in entry for character in name):
        return None  # half a character, which could not be shown
    return {name: tuple(shape) for name, shape in entry.items()}


def _checkpoints_in(root: str) -> list[str]:
    """Return the folders of the checkpoints in `root`, the newest first."""
    if not os.path.isdir(root):
        return []
    return sorted((entry.path for entry in os.scandir(root) if entry.name.startswith("step_")), reverse=True)


def _manifest_in(path: str) -> dict[str, Any] | None:
    """Return the manifest of the checkpoint in a local folder; None if the checkpoint is unfinished or damaged."""
    try:
        return read_manifest(path, _content, list_local_sizes)
    except (BadCheckpointError, OSError):
        return None


def _content(path: str) -> bytes:
    if not os.path.isfile(path):  # reading a pipe might never end
        raise FileNotFoundError(path)
    with open(path, "rb") as stream:
        return stream.read()


class BadCheckpointError(Exception):
    """Error: a checkpoint is unfinished or damaged. The text is the reason."""


def seal(manifest: Mapping[str, Any]) -> bytes:
    """Return a manifest as JSON text. Its first key is the checksum of the text, computed with zeros in place of the
    checksum."""
    text = json.dumps({"sha256": _BLANK.decode(), **manifest}, indent=1, allow_nan=False).encode()
    return _with_digest(text, hashlib.sha256(text).hexdigest().encode())


def _with_digest(text: bytes, digest: bytes) -> bytes:
    return text[: len(_SEAL)] + digest + text[len(_SEAL) + len(_BLANK) :]


def is_as_written(content: bytes) -> bool:
    """Return whether the text of a manifest matches the checksum in it. `content`: the text as bytes."""
    digest = content[len(_SEAL) : len(_SEAL) + len(_BLANK)]
    text = _with_digest(content, _BLANK)
    return content.startswith(_SEAL) and hashlib.sha256(text).hexdigest().encode() == digest


def list_local_sizes(folder: str) -> dict[str, int]:
    """Return a dict from the name of each file in a local folder to its size in bytes."""
    return {entry.name: entry.stat().st_size for entry in os.scandir(folder) if entry.is_file()}


def make_sizes_reader(fs: Any) -> Callable[[str], dict[str, int]]:
    """Return a function that takes a folder of the fsspec file system `fs`, and returns a dict from file name to size
    in bytes. It lists the whole folder in one request: one request per file would take minutes for the checkpoint of a
    thousand ranks."""

    def sizes(folder: str) -> dict[str, int]:
        fs.invalidate_cache()
        found = fs.ls(folder, detail=True)
        return {str(each["name"]).rsplit("/", 1)[-1]: each["size"] for each in found if each["type"] != "directory"}

    return sizes


def read_manifest(path: str, read: Callable[[str], bytes], sizes: Callable[[str], Mapping[str, int]]) -> dict[str, Any]:
    """Return the manifest of the checkpoint at `path`. Its key `files` also has the files from the separate lists that
    the manifest names (key `lists`). Check that all files exist and have the right sizes.

    `read`: function from the path of a file to its content. `sizes`: function from a folder to {file: size}. Raises
    BadCheckpointError if the checkpoint is unfinished or damaged, and the errors of `read` and `sizes` except
    FileNotFoundError."""
    try:
        content = read(f"{path}/{MANIFEST}")
    except FileNotFoundError:
        raise BadCheckpointError(f"the checkpoint {path} is incomplete: {MANIFEST} is missing") from None
    try:
        is_whole = is_as_written(content)
        manifest: dict[str, Any]
        manifest = json.loads(content) if is_whole or not content.startswith(_SEAL) else {"format": FORMAT}
        if not is_whole and (manifest["format"] == FORMAT or "sha256" in manifest):
            raise BadCheckpointError(f"the checkpoint {path} is damaged: the checksum of {MANIFEST} does not match")
        if manifest["format"] not in (FORMAT, UNSEALED):
            raise BadCheckpointError(
                f"the checkpoint {path} has format {manifest['format']}, this dtrain reads {FORMAT}"
            )
        int(manifest["step"])
        files = dict(manifest["files"])
        for name, record in manifest.get("lists", {}).items():
            rows = read(f"{path}/{name}")
            if hashlib.sha256(rows).hexdigest() != record["sha256"]:
                raise BadCheckpointError(f"the checkpoint {path} is damaged: the checksum of {name} does not match")
            files |= {name: record, **json.loads(rows)}
        found = sizes(path)
        for name, record in files.items():
            if name not in found:
                raise FileNotFoundError(name)
            if found[name] != record["size_bytes"]:
                why = f"{name} has {format_count(found[name], 'byte')}, {record['size_bytes']} were written"
                raise BadCheckpointError(f"the checkpoint {path} is damaged: {why}")
    except FileNotFoundError as error:
        missing = str(error.filename or error).rsplit("/", 1)[-1]
        raise BadCheckpointError(f"the checkpoint {path} is damaged: {missing} is missing") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadCheckpointError(f"the checkpoint {path} is damaged: {MANIFEST} cannot be read") from None
    return manifest | {"files": files}
