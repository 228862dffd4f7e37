"""Tensor files of checkpoints: torch's distributed checkpoints (DCP) over fsspec, with two changes.

- Nothing in a file is executed: the metadata is unpickled with a list of allowed classes, and entries that are not
  tensors are rejected. (DCP uses `pickle.load` and `torch.load(weights_only=False)`.)
- Files are hashed while they are written, so that a manifest can contain their checksums.

Importing this module imports DCP (0.6 s), so `run/checkpoint.py` imports it when training starts."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

if TYPE_CHECKING:
    from torch.distributed.checkpoint._fsspec_filesystem import FileSystem, FsspecReader, FsspecWriter
else:
    try:  # public since torch 2.15, which deprecates the other name
        from torch.distributed.checkpoint.fsspec_filesystem import FsspecReader, FsspecWriter
        from torch.distributed.checkpoint.fsspec_filesystem import _FileSystem as FileSystem
    except ImportError:
        from torch.distributed.checkpoint._fsspec_filesystem import FileSystem, FsspecReader, FsspecWriter

from declarative_train.core.cuts import NO_CUTS, RankCut
from declarative_train.engine.checkpoints.parts import PartLoadPlanner, PartSavePlanner, split_off
from declarative_train.engine.checkpoints.retry import Retry
from declarative_train.engine.checkpoints.store import read_metadata
from declarative_train.engine.failures import CheckpointFailure, PeerFailure, explain

WRITE_BYTES = 1 << 20

# names that the metadata of a checkpoint may contain, by module
_ALLOWED: dict[str, frozenset[str]] = {
    "torch.distributed.checkpoint.metadata": frozenset(
        {
            "Metadata",
            "MetadataIndex",
            "TensorStorageMetadata",
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "TensorProperties",
            "StorageMeta",
            "_MEM_FORMAT_ENCODING",
        }
    ),
    "torch.distributed.checkpoint.filesystem": frozenset({"_StorageInfo"}),
    "torch.serialization": frozenset({"_get_layout"}),
    "torch": frozenset(
        {"Size"}
        | {name for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype)}
        | {name for name in dir(torch) if isinstance(getattr(torch, name), torch.memory_format)}
    ),
}


class AllowList(pickle.Unpickler):
    """Unpickler for DCP's metadata. It loads only the classes that metadata needs, and rejects all others."""

    def find_class(self, module: str, name: str) -> Any:
        if name not in _ALLOWED.get(module, frozenset()):
            message = f"the checkpoint's metadata names {module}.{name}, which is not part of a checkpoint"
            raise CheckpointFailure(message)
        return super().find_class(module, name)


class HashingStream(io.RawIOBase):
    """Write-only stream that hashes what is written to it.

    DCP (`torch.distributed.checkpoint`) writes a tensor in some forty pieces, most of them a few bytes long, and
    flushes after each. The stream collects the pieces and writes them together, at the latest in `finish`.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._waiting = bytearray()
        self.size_bytes = 0
        self._hash = hashlib.sha256()

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.size_bytes += len(view)
        if len(self._waiting) + len(view) > WRITE_BYTES:
            self.finish()
        if len(view) > WRITE_BYTES:
            self._pass_on(view)
        else:
            self._waiting += view
        return len(view)

    def tell(self) -> int:
        return self.size_bytes

    def fileno(self) -> int:
        """Write all collected pieces and return the file descriptor, which DCP passes to `fsync`."""
        self.finish()
        self._stream.flush()
        return int(self._stream.fileno())

    def writable(self) -> bool:
        return True

    def finish(self) -> None:
        self._pass_on(self._waiting)
        self._waiting = bytearray()

    def sha256(self) -> str:
        return self._hash.hexdigest()

    def _pass_on(self, data: memoryview | bytearray) -> None:
        self._stream.write(data)
        self._hash.update(data)


class HashingFileSystem(FileSystem):
    """File system that records name, size and checksum of each file that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, dict[str, Any]] = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[io.IOBase, None, None]:
        with super().create_stream(path, mode) as stream:
            if mode != "wb":
                yield stream
                return
            hashing = HashingStream(stream)
            yield hashing
            hashing.finish()
            name = os.path.basename(os.fspath(path))
            self.files[name] = {"size_bytes": hashing.size_bytes, "sha256": hashing.sha256()}

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        super().rename(path, new_path)
        self.files[os.path.basename(os.fspath(new_path))] = self.files.pop(os.path.basename(os.fspath(path)))


class Writer(FsspecWriter):
    """Writer of DCP (torch's distributed checkpoints) that repeats failed operations with `retry`. Before any rank
    writes, the rank that coordinates the save calls `prepare`. If this fails, the save fails on all ranks."""

    def __init__(self, path: str, retry: Retry, prepare: Callable[[], object]) -> None:
        super().__init__(path, sync_files="://" not in path, overwrite=True)
        hashing = HashingFileSystem()
        self.fs = hashing  # type: ignore[assignment]  # as FsspecWriter itself does
        self.path = hashing.init_path(path)
        self.files = hashing.files  # what this rank wrote
        self.shapes: dict[str, list[int]] = {}
        self._retry = retry
        self._prepare = prepare

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan unchanged. DCP's own method would create the folder on every rank, while rank 0 may be
        emptying it in `CheckpointStore.prepare`."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        self._retry(self._prepare)
        return super().prepare_global_plan(plans)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        write = super().write_data
        return self._retry(lambda: write(plan, planner))

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        finish = super().finish
        self.shapes = {name: list(size) for name, (size, _) in list_tensors(metadata).items()}
        self._retry(lambda: finish(metadata, results))
        metadata.state_dict_metadata, metadata.storage_data = {}, {}  # DCP sends the object to all ranks


class Reader(FsspecReader):
    """DCP's reader of a checkpoint whose metadata is already known, so that it is not read again."""

    def __init__(self, path: str, metadata: Metadata) -> None:
        super().__init__(path)
        self._known = metadata

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self._known


class TensorsOnly(PartLoadPlanner):
    """DCP load planner that rejects entries that are not tensors, because DCP would unpickle them."""

    def create_local_plan(self) -> LoadPlan:
        assert self.metadata is not None
        entries = self.metadata.state_dict_metadata
        for name in (*self.state_dict, *self.parts):
            if isinstance(entries.get(name), BytesStorageMetadata):
                raise CheckpointFailure(f"the checkpoint's entry {name} is not a tensor")
        return super().create_local_plan()

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        raise CheckpointFailure(f"the checkpoint's entry {read_item.dest_index.fqn} is not a tensor")


def save_tensors(
    path: str,
    tensors: Mapping[str, torch.Tensor],
    *,
    alone: bool,
    group: distributed.ProcessGroup | None = None,
    cuts: Mapping[str, RankCut] = NO_CUTS,
    retry: Retry | None = None,
    prepare: Callable[[], object] = lambda: None,
) -> tuple[dict[str, dict[str, Any]], dict[str, list[int]]]:
    """Write tensors into the folder `path`. Return (files, shapes): {file that this rank wrote: its size and checksum},
    and {tensor of any rank: its shape} on the rank that coordinates the save, {} on others.

    `alone`    only this process writes; otherwise all ranks of `group` (None: all) must call this together
    `cuts`     dict from each tensor that the axis `tensor` or `expert` divides to this rank's part
    `retry`    repeats failed operations; None: nothing is repeated
    `prepare`  function that creates the empty folder

    Raises OSError, and PeerFailure if another rank failed.
    """
    writer = Writer(path, retry or Retry(0.0), prepare)
    plain, parts = split_off(tensors, cuts)
    planner = PartSavePlanner(parts)
    try:
        with silence_warnings():
            save(plain, storage_writer=writer, planner=planner, no_dist=alone, process_group=group)
    except CheckpointException as error:  # a BaseException
        raise find_cause(error, alone) from error
    return writer.files, writer.shapes


def parse_metadata(text: bytes) -> Metadata:
    """Return DCP's metadata from the content of its file. Raises CheckpointFailure if the content is not valid, or
    names a class that DCP's metadata does not use."""
    found = AllowList(io.BytesIO(text)).load()
    if not isinstance(found, Metadata):
        raise CheckpointFailure("the checkpoint's metadata is not valid")
    if found.storage_meta is None:
        found.storage_meta = StorageMeta()
    return found


def load_tensors(
    path: str,
    into: Mapping[str, torch.Tensor],
    *,
    alone: bool,
    cuts: Mapping[str, RankCut] = NO_CUTS,
    metadata: Metadata | None = None,
) -> None:
    """Fill the tensors `into`, in place, from the checkpoint at `path`, which may have been saved with another layout.

    `alone`     only this process loads; otherwise all ranks must call this together
    `cuts`      a dict from each tensor that the axis `tensor` or `expert` divides to the part that this rank has
    `metadata`  the checkpoint's metadata; None: it is read from its file

    Raises CheckpointFailure, and PeerFailure if another rank failed."""
    reader = Reader(path, metadata or parse_metadata(read_metadata(path)))
    plain, parts = split_off(into, cuts)
    try:
        with silence_warnings():
            load(plain, storage_reader=reader, planner=TensorsOnly(parts), no_dist=alone)
    except CheckpointException as error:  # a BaseException
        cause = find_cause(error, alone)
        if isinstance(cause, CheckpointFailure | PeerFailure):
            raise cause from None
        raise CheckpointFailure(f"cannot read the checkpoint {path}: {type(cause).__name__}: {cause}") from error


def find_cause(error: CheckpointException, alone: bool) -> BaseException:
    """Return the error that made a save or load fail on this rank. If it failed only on other ranks, return a
    PeerFailure with the error of one of them. `error`: DCP's exception, which has the errors of all ranks. `alone`:
    only this process took part; then DCP calls it rank 0."""
    rank = 0 if alone or not distributed.is_initialized() else distributed.get_rank()
    if rank in error.failures:
        return error.failures[rank][0]
    number, (cause, _) = next(iter(error.failures.items()))
    return PeerFailure(f"rank {number} failed: {explain(cause)}")


def describe_tensors(path: str) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Return a dict from the names of the tensors in the checkpoint at `path` to (shape, dtype). Raises
    CheckpointFailure."""
    return list_tensors(parse_metadata(read_metadata(path)))


def list_tensors(metadata: Metadata) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Return a dict from the names of the tensors in DCP's metadata to (shape, dtype)."""
    return {
        name: (entry.size, entry.properties.dtype)
        for name, entry in metadata.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }


@contextmanager
def silence_warnings() -> Generator[None, None, None]:
    """Suppress all warnings within the `with` block, because DCP warns when a single process saves or loads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
