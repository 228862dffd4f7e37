"""The checkpoints of a run as a folder of folders: which there are, which are whole, which to keep.

    <run>/checkpoints/step_00000120/manifest.json     written last: it *is* the checkpoint
                                    .metadata, __0_0.distcp, ...

A folder without a manifest that can be read, or whose files do not have the sizes it names, is torn: never used, never
counted. On a local disk the folder is written under another name and renamed, too.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from typing import Any

from declarative_train.plan.run_folder import MANIFEST, TornError, read_manifest
from declarative_train.runtime.failures import CheckpointFailure

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """A whole checkpoint."""

    step: int
    path: str
    manifest: dict[str, Any]


class CheckpointStore:
    """`root` is a folder or any fsspec URL."""

    def __init__(self, root: str) -> None:
        from fsspec.core import url_to_fs

        self.root = root.rstrip("/")
        self._fs, _ = url_to_fs(self.root)
        self.is_local = "local" in _protocols(self._fs)

    def has(self, path: str) -> bool:
        return bool(self._fs.exists(path))

    def path(self, step: int) -> str:
        return f"{self.root}/step_{step:08d}"

    def partial_path(self, step: int) -> str:
        """Where to write before publishing. An object store has no rename of folders: there the manifest alone says
        that a checkpoint exists."""
        return f"{self.root}/.step_{step:08d}.partial" if self.is_local else self.path(step)

    def prepare(self, step: int) -> str:
        """An empty place for a new checkpoint."""
        path = self.partial_path(step)
        self._remove(path)
        self._fs.makedirs(path, exist_ok=True)
        return path

    def publish(self, step: int, manifest: dict[str, Any]) -> Entry:
        """Write the manifest; from now on the checkpoint exists."""
        partial, final = self.partial_path(step), self.path(step)
        with self._fs.open(f"{partial}/{MANIFEST}", "wb") as stream:
            stream.write(json.dumps(manifest, indent=1, allow_nan=False).encode())
            if self.is_local:
                stream.flush()
                os.fsync(stream.fileno())
        if self.is_local:
            self._remove(final)
            os.rename(self._local(partial), self._local(final))
            _sync_folder(self._local(self.root))
        return Entry(step, final, manifest)

    def entries(self) -> tuple[list[Entry], list[str]]:
        """(whole checkpoints, newest first; why others were left out)."""
        self._fs.invalidate_cache()
        if not self._fs.exists(self.root):
            return [], []
        whole, torn = [], []
        for found in self._fs.ls(self.root, detail=False):
            name = str(found).rstrip("/").rsplit("/", 1)[-1]
            if not name.startswith("step_"):
                continue
            try:
                whole.append(read_entry(f"{self.root}/{name}"))
            except CheckpointFailure as failure:
                torn.append(str(failure))
        return sorted(whole, key=lambda entry: -entry.step), torn

    def retain(self, keep: int, best_step: int | None) -> list[str]:
        """Remove all but the newest `keep` and the best. Torn ones older than a whole one go too."""
        whole, _ = self.entries()
        kept = {entry.path for entry in whole[: max(keep, 1)]} | {self.path(best_step) if best_step is not None else ""}
        removed = [entry.path for entry in whole if entry.path not in kept]
        for path in removed:
            self._remove(path)
        return removed

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
    return Entry(int(manifest["step"]), path, manifest)


def verify(entry: Entry, *, part: int = 0, num_parts: int = 1) -> None:
    """Checksums of every `num_parts`-th file (the ranks share them out). Raises CheckpointFailure."""
    from fsspec.core import url_to_fs

    fs, inner = url_to_fs(entry.path)
    for name in sorted(entry.manifest["files"])[part::num_parts]:
        digest = hashlib.sha256()
        with fs.open(f"{inner}/{name}", "rb") as stream:
            while block := stream.read(CHUNK_BYTES):
                digest.update(block)
        if digest.hexdigest() != entry.manifest["files"][name]["sha256"]:
            raise CheckpointFailure(f"the checkpoint {entry.path} is damaged: the checksum of {name} does not match")


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def _sync_folder(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
