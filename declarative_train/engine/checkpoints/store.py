"""The checkpoints of a run as a folder of folders: which there are, which are whole, which to keep.

    <run>/checkpoints/step_00000120/manifest.json     written last: it *is* the checkpoint
                                    .metadata, __0_0.distcp, ...

A folder without a manifest is torn: a save or a removal that was cut short. One whose manifest is not as it was
written, or whose files are not of the sizes it names, is damaged. Neither is ever used or counted. Whether the content
of the files is what was written shows only when they are read, so the one that a run goes on from is read first
(`newest`). On a local disk a checkpoint is written under another name and renamed.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from declarative_train.engine.failures import CheckpointFailure
from declarative_train.plan.run_folder import MANIFEST, TornError, read_manifest, seal

CHUNK_BYTES = 1 << 20
HASTY_BYTES = 1 << 30
MOST_THREADS = 8  # that read at a time
_PARTIAL, _REPLACED = ".partial", ".replaced"
_FOLDER = re.compile(r"step_(\d{8,})")
_LEFT_OVER = re.compile(r"\.step_\d+\.(partial|replaced)")


@dataclass(frozen=True, slots=True)
class Entry:
    """A whole checkpoint."""

    step: int
    path: str
    manifest: dict[str, Any]

    @property
    def size_bytes(self) -> int:
        return sum(int(record["size_bytes"]) for record in self.manifest["files"].values())


Look = Callable[[Entry], "str | None"]  # why a checkpoint must not be used, after reading all of it


class CheckpointStore:
    """`root` is a folder or any fsspec URL."""

    def __init__(self, root: str) -> None:
        from fsspec.core import url_to_fs

        self.root = root.rstrip("/")
        self._fs, _ = url_to_fs(self.root)
        self.is_local = "local" in _protocols(self._fs)

    def has(self, path: str) -> bool:
        return bool(self._fs.exists(path))

    def text(self, path: str) -> str:
        """Of a file in it. Raises OSError."""
        return bytes(self._fs.cat_file(path)).decode("utf-8", "replace")

    def folders(self) -> list[str]:
        """Those in it, whatever they are."""
        if not self._fs.exists(self.root):
            return []
        found = self._fs.ls(self.root, detail=True)
        return [f"{self.root}/{_last(each['name'])}" for each in found if each["type"] == "directory"]

    def path(self, step: int) -> str:
        return f"{self.root}/step_{step:08d}"

    def partial_path(self, step: int) -> str:
        """Where to write before publishing. An object store has no rename of folders: there the manifest alone says
        that a checkpoint exists."""
        return f"{self.root}/.step_{step:08d}{_PARTIAL}" if self.is_local else self.path(step)

    def prepare(self, step: int) -> str:
        """An empty place for a new checkpoint."""
        path = self.partial_path(step)
        self._remove(path)
        self._fs.makedirs(path, exist_ok=True)
        return path

    def write(self, step: int, name: str, content: bytes) -> dict[str, Any]:
        """A small file of a checkpoint that is not published yet. Returns its record for the manifest's `files`."""
        with self._fs.open(f"{self.partial_path(step)}/{name}", "wb") as stream:
            stream.write(content)
            if self.is_local:
                stream.flush()
                os.fsync(stream.fileno())
        return {"size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    def publish(self, step: int, manifest: dict[str, Any]) -> Entry:
        """Write the manifest, after all else is on the disk; from now on the checkpoint exists."""
        partial, final = self.partial_path(step), self.path(step)
        self.write(step, MANIFEST, seal(manifest))
        if self.is_local:
            self._replace(partial, final)
        return Entry(step, final, manifest)

    def _replace(self, partial: str, final: str) -> None:
        """One that is there already (the run went on from before it) stays until the new one is."""
        _sync_folder(self._local(partial))
        replaced = f"{self.root}/.{final.rsplit('/', 1)[-1]}{_REPLACED}"
        if self._fs.exists(final):
            self._remove(replaced)
            os.rename(self._local(final), self._local(replaced))
        os.rename(self._local(partial), self._local(final))
        _sync_folder(self._local(self.root))
        self._remove(replaced)

    def entries(self) -> tuple[list[Entry], list[str]]:
        """(checkpoints by manifest and sizes, newest first; why others were left out)."""
        whole, torn = [], []
        for step in self._steps():
            try:
                whole.append(read_entry(self.path(step)))
            except CheckpointFailure as failure:
                torn.append(str(failure))
        return sorted(whole, key=lambda entry: -entry.step), torn

    def newest(self, look: Look | None = None) -> tuple[Entry | None, list[str]]:
        """(the newest checkpoint of which every byte is what was written, why others were passed over). Reads that one,
        and those that it passes over."""
        candidates, reasons = self.entries()
        for entry in candidates:
            reason = (look or damage)(entry)
            if reason is None:
                return entry, reasons
            reasons.append(reason)
        return None, reasons

    def retain(self, keep: int, best_step: int | None) -> list[str]:
        """Remove all but the newest `keep` and the best, and with them what is torn or damaged and as old."""
        whole, _ = self.entries()
        newest = whole[: max(keep, 1)]
        oldest_step = newest[-1].step if newest else 0
        steps = [step for step in self._steps() if step < oldest_step and step != best_step]
        for step in steps:
            self._remove(self.path(step))
        return [self.path(step) for step in steps]

    def clean(self) -> list[str]:
        """Remove what saves and removals that were cut short have left. Only for the holder of the run (`RunLock`)."""
        if not self.is_local or not self._fs.exists(self.root):
            return []
        names = os.listdir(self._local(self.root))
        left = [f"{self.root}/{name}" for name in names if _LEFT_OVER.fullmatch(name)]
        left += [path for path in map(self.path, self._steps()) if not self._fs.exists(f"{path}/{MANIFEST}")]
        for path in left:
            self._remove(path)
        return left

    def _steps(self) -> list[int]:
        """Those that there is a folder of, whole or not; the oldest first."""
        self._fs.invalidate_cache()
        if not self._fs.exists(self.root):
            return []
        names = (_last(path) for path in self._fs.ls(self.root, detail=False))
        return sorted(int(found[1]) for name in names if (found := _FOLDER.fullmatch(name)))

    def _remove(self, path: str) -> None:
        """The manifest first: a removal that is cut short leaves nothing that looks whole."""
        if not self._fs.exists(path):
            return
        if self._fs.exists(f"{path}/{MANIFEST}"):
            self._fs.rm_file(f"{path}/{MANIFEST}")
        self._fs.rm(path, recursive=True)

    def _local(self, path: str) -> str:
        return str(self._fs._strip_protocol(path))


def read_entry(path: str) -> Entry:
    """The checkpoint at a path, its files there and of the right size. Raises CheckpointFailure."""
    from fsspec.core import url_to_fs

    path = path.rstrip("/")
    fs, _ = url_to_fs(path)
    try:
        manifest = read_manifest(path, fs.cat_file, fs.size)
    except TornError as torn:
        raise CheckpointFailure(str(torn)) from None
    except OSError as error:  # no right to read it, a folder in the place of a file, a bad sector
        raise CheckpointFailure(f"the checkpoint {path} cannot be read: {_reason(error)}") from None
    return Entry(int(manifest["step"]), path, manifest)


def damage(entry: Entry, *, part: int = 0, num_parts: int = 1) -> str | None:
    """Why a checkpoint must not be used, by the checksums of every `num_parts`-th file (ranks share them out); None
    where these are as they were written."""
    from concurrent.futures import ThreadPoolExecutor

    names = sorted(entry.manifest["files"])[part::num_parts]
    threads = min(MOST_THREADS, os.cpu_count() or 1, max(len(names), 1))
    with ThreadPoolExecutor(threads) as pool:  # reading and hashing let other threads go on
        reasons = [reason for reason in pool.map(lambda name: _damage_of(entry, name), names) if reason is not None]
    return f"the checkpoint {entry.path} is damaged: {reasons[0]}" if reasons else None


def hasty_damage(entry: Entry) -> str | None:
    """As `damage`, for who cannot wait: a large checkpoint is taken for what its sizes say."""
    return damage(entry) if entry.size_bytes <= HASTY_BYTES else None


def _damage_of(entry: Entry, name: str) -> str | None:
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
