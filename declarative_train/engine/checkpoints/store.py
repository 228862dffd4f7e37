"""Checkpoint store: it lists, checks, publishes and removes the checkpoints of one run.

    <run>/checkpoints/step_00000120/manifest.json     written last
                                    .metadata, __0_0.distcp, ...

without a manifest   unfinished: a save or a removal was interrupted
damaged              the manifest was changed, or files do not have its sizes and checksums

Both are never used or counted. Manifest and sizes are checked whenever checkpoints are listed. Checksums are checked
only before a run resumes (`newest`), because they need all bytes of the files."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from declarative_train.engine.failures import CheckpointFailure
from declarative_train.plan.checkpoint_files import MANIFEST, BadCheckpointError, make_sizes_reader, read_manifest, seal

CHUNK_BYTES = 1 << 20
METADATA = ".metadata"  # DCP's file
HASTY_BYTES = 1 << 30
MOST_THREADS = 8  # that read files
_PARTIAL, _REPLACED = ".partial", ".replaced"
_FOLDER = re.compile(r"step_(\d{8,})")
_LEFT_OVER = re.compile(r"\.step_\d+\.(partial|replaced)")


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """Complete checkpoint in a store. `manifest`: content of its manifest, with a table of the sizes and checksums of
    its files."""

    step: int
    path: str
    manifest: dict[str, Any]

    @property
    def size_bytes(self) -> int:
        return sum(int(record["size_bytes"]) for record in self.manifest["files"].values())

    def share(self, part: int, num_parts: int) -> CheckpointEntry:
        """Return a copy of this entry with only the files that rank `part` of `num_parts` ranks checks: every
        `num_parts`-th file in the order of names, from index `part` on."""
        names = sorted(self.manifest["files"])[part::num_parts]
        return CheckpointEntry(self.step, self.path, {"files": {name: self.manifest["files"][name] for name in names}})

    def without_files(self) -> CheckpointEntry:
        """Return a copy of this entry without its table of files, which is large and which only rank 0 needs."""
        return CheckpointEntry(self.step, self.path, self.manifest | {"files": {}})


DamageCheck = Callable[
    [CheckpointEntry], "str | None"
]  # returns why a checkpoint must not be used, after reading all of it


class CheckpointStore:
    """Store of the checkpoints of one run. `root`: the folder of the checkpoints, or a URL that fsspec can open."""

    def __init__(self, root: str) -> None:
        from fsspec.core import url_to_fs

        self.root = root.rstrip("/")
        self._fs, _ = url_to_fs(self.root)
        self.is_local = "local" in _protocols(self._fs)
        self._complete: set[int] | None = None  # steps of the complete checkpoints, once they were read

    def has(self, path: str) -> bool:
        return bool(self._fs.exists(path))

    def text(self, path: str) -> str:
        """Return the text of a file in the store. Raises OSError."""
        return bytes(self._fs.cat_file(path)).decode("utf-8", "replace")

    def folders(self) -> list[str]:
        """Return the paths of all folders in the store, including those of unfinished checkpoints."""
        if not self._fs.exists(self.root):
            return []
        found = self._fs.ls(self.root, detail=True)
        return [f"{self.root}/{_last(each['name'])}" for each in found if each["type"] == "directory"]

    def path(self, step: int) -> str:
        return f"{self.root}/step_{step:08d}"

    def partial_path(self, step: int) -> str:
        """Return the path to which the checkpoint of `step` is written. On a local disk it is a temporary name. At a
        URL it is the final path, because an object store cannot rename folders; there only the manifest marks the
        checkpoint as complete."""
        return f"{self.root}/.step_{step:08d}{_PARTIAL}" if self.is_local else self.path(step)

    def prepare(self, step: int) -> str:
        """Create an empty folder for the new checkpoint of `step`, and return its path."""
        path = self.partial_path(step)
        self._remove(path)
        self._fs.makedirs(path, exist_ok=True)
        return path

    def write(self, step: int, name: str, content: bytes) -> dict[str, Any]:
        """Write a small file of a checkpoint that is not published yet. Return its size and checksum, for the
        manifest."""
        with self._fs.open(f"{self.partial_path(step)}/{name}", "wb") as stream:
            stream.write(content)
            if self.is_local:
                stream.flush()
                os.fsync(stream.fileno())
        return {"size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    def publish(self, step: int, manifest: dict[str, Any]) -> CheckpointEntry:
        """Complete the checkpoint of `step` by writing its manifest, and return its entry. All other files must already
        be written."""
        partial, final = self.partial_path(step), self.path(step)
        self.write(step, MANIFEST, seal(manifest))
        if self.is_local:
            self._replace(partial, final)
        if self._complete is not None:
            self._complete.add(step)
        return CheckpointEntry(step, final, manifest)

    def discard(self, step: int) -> None:
        """Remove the checkpoint of `step`, whose save failed. At a URL do nothing; there `retain` removes the files
        later."""
        if self.is_local:
            self._remove(self.partial_path(step))

    def _replace(self, partial: str, final: str) -> None:
        """Rename a new checkpoint from its temporary path `partial` to `final`. A checkpoint of this step may already
        exist, if the run resumed from an earlier step. It is removed only after the new one has its name."""
        _sync_folder(self._local(partial))
        replaced = f"{self.root}/.{final.rsplit('/', 1)[-1]}{_REPLACED}"
        if self._fs.exists(final):
            self._remove(replaced)
            os.rename(self._local(final), self._local(replaced))
        os.rename(self._local(partial), self._local(final))
        _sync_folder(self._local(self.root))
        self._remove(replaced)

    def entries(self) -> tuple[list[CheckpointEntry], list[str]]:
        """Return the complete checkpoints, newest first, and the reasons why others were left out. Manifests and sizes
        of files are checked, but not checksums."""
        whole, skipped = [], []
        for step in self._steps():
            try:
                whole.append(read_entry(self.path(step)))
            except CheckpointFailure as failure:
                skipped.append(str(failure))
        return sorted(whole, key=lambda entry: -entry.step), skipped

    def newest(self, look: DamageCheck | None = None) -> tuple[CheckpointEntry | None, list[str]]:
        """Return the newest undamaged checkpoint, or None, and the reasons why newer ones were skipped. `look`:
        function that returns what is wrong with a checkpoint, or None; by default the function `damage`."""
        candidates, reasons = self.entries()
        for entry in candidates:
            reason = (look or damage)(entry)
            if reason is None:
                return entry, reasons
            reasons.append(reason)
        return None, reasons

    def retain(self, keep: int, best_step: int | None) -> list[str]:
        """Keep the newest `keep` complete checkpoints and that of `best_step`. Remove all older ones, also unfinished
        and damaged ones, and return their paths. Only the first call reads manifests, because they are large if there
        are many ranks."""
        if self._complete is None:
            self._complete = {entry.step for entry in self.entries()[0]}
        newest = sorted(self._complete, reverse=True)[: max(keep, 1)]
        oldest_step = newest[-1] if newest else 0
        steps = [step for step in self._steps() if step < oldest_step and step != best_step]
        for step in steps:
            self._remove(self.path(step))
            self._complete.discard(step)
        return [self.path(step) for step in steps]

    def clean(self) -> list[str]:
        """Remove what interrupted saves and removals have left on a local disk; at a URL do nothing. Return the removed
        paths. Only the process that has the run's lock (`RunLock`) may call this."""
        if not self.is_local or not self._fs.exists(self.root):
            return []
        names = os.listdir(self._local(self.root))
        left = [f"{self.root}/{name}" for name in names if _LEFT_OVER.fullmatch(name)]
        left += [path for path in map(self.path, self._steps()) if not self._fs.exists(f"{path}/{MANIFEST}")]
        for path in left:
            self._remove(path)
        return left

    def _steps(self) -> list[int]:
        """Return the steps that have a checkpoint folder, complete or unfinished, in increasing order."""
        self._fs.invalidate_cache()
        try:  # not `exists`, which is also False if a store does not answer
            names = [_last(path) for path in self._fs.ls(self.root, detail=False)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(int(found[1]) for name in names if (found := _FOLDER.fullmatch(name)))

    def _remove(self, path: str) -> None:
        """Remove the checkpoint folder at `path`. The manifest is removed first, so that an interrupted removal does
        not leave a checkpoint that looks complete."""
        if not self._fs.exists(path):
            return
        if self._fs.exists(f"{path}/{MANIFEST}"):
            self._fs.rm_file(f"{path}/{MANIFEST}")
        self._fs.rm(path, recursive=True)

    def _local(self, path: str) -> str:
        return str(self._fs._strip_protocol(path))


def read_entry(path: str) -> CheckpointEntry:
    """Return the entry of the checkpoint at a path. Raises CheckpointFailure if its manifest was changed, or if files
    are missing or have other sizes than in the manifest."""
    from fsspec.core import url_to_fs

    path = path.rstrip("/")
    fs, _ = url_to_fs(path)
    try:
        manifest = read_manifest(path, fs.cat_file, make_sizes_reader(fs))
    except BadCheckpointError as problem:
        raise CheckpointFailure(str(problem)) from None
    except OSError as error:  # no permission, a folder instead of a file, a bad sector
        raise CheckpointFailure(f"the checkpoint {path} cannot be read: {_reason(error)}") from None
    return CheckpointEntry(int(manifest["step"]), path, manifest)


def read_metadata(path: str) -> bytes:
    """Return the content of the file with DCP's metadata in the checkpoint at `path`. Raises CheckpointFailure."""
    from fsspec.core import url_to_fs

    fs, inner = url_to_fs(path)
    try:
        return bytes(fs.cat_file(f"{inner}/{METADATA}"))
    except OSError as error:
        raise CheckpointFailure(f"cannot read the checkpoint {path}: {_reason(error)}") from error


def damage(entry: CheckpointEntry) -> str | None:
    """Return why a checkpoint is damaged, or None. It reads all files and compares their checksums with the
    manifest."""
    from concurrent.futures import ThreadPoolExecutor

    names = sorted(entry.manifest["files"])
    threads = min(MOST_THREADS, os.cpu_count() or 1, max(len(names), 1))
    with ThreadPoolExecutor(threads) as pool:  # reading and hashing release the GIL
        reasons = [reason for reason in pool.map(lambda name: _damage_of(entry, name), names) if reason is not None]
    return f"the checkpoint {entry.path} is damaged: {reasons[0]}" if reasons else None


def hasty_damage(entry: CheckpointEntry) -> str | None:
    """Return why a checkpoint is damaged; None if it is undamaged, or if it has more than `HASTY_BYTES` and so would
    take too long to check."""
    return damage(entry) if entry.size_bytes <= HASTY_BYTES else None


def _damage_of(entry: CheckpointEntry, name: str) -> str | None:
    from fsspec.core import url_to_fs

    fs, inner = url_to_fs(entry.path)
    digest = hashlib.sha256()
    try:
        with fs.open(f"{inner}/{name}", "rb") as stream:
            while block := stream.read(CHUNK_BYTES):
                digest.update(block)
    except FileNotFoundError:
        return f"{name} is missing"
    except OSError as error:
        return f"{name} cannot be read: {_reason(error)}"
    is_right = digest.hexdigest() == entry.manifest["files"][name]["sha256"]
    return None if is_right else f"the checksum of {name} does not match"


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def _last(path: object) -> str:
    return str(path).rstrip("/").rsplit("/", 1)[-1]


def _sync_folder(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
