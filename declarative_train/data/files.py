"""Files -> their records: what tells, later, whether they are still the same."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

from declarative_train.components.datasets.files import local_path, read_bytes, size_bytes
from declarative_train.data.spec import FileRecord

WHOLE_BYTES = 64 << 20  # a file up to here may be read whole
ALL_BYTES = 256 << 20  # all files of a recipe together: a second of hashing
SAMPLE_BYTES = 64 << 10


def records(paths: Iterable[str]) -> list[FileRecord]:
    """Of every file that a recipe rests on. Raises SourceError."""
    sizes = {path: size_bytes(path) for path in paths}
    are_few = sum(sizes.values()) <= ALL_BYTES
    return [record(path, whole=are_few and size <= WHOLE_BYTES) for path, size in sizes.items()]


def record(path: str, *, whole: bool) -> FileRecord:
    """Not `whole`: `sha256` covers the size and the beginning, the middle and the end, 64 KiB each; and the date is
    kept, which changes with what lies in between. Raises SourceError."""
    size = size_bytes(path)
    if whole:
        return FileRecord(path, size, hashlib.sha256(read_bytes(path)).hexdigest())
    digest = hashlib.sha256(f"{size}\n".encode())
    for start in sorted({0, max(size - SAMPLE_BYTES, 0) // 2, max(size - SAMPLE_BYTES, 0)}):
        digest.update(read_bytes(path, start, min(start + SAMPLE_BYTES, size)))
    local = local_path(path)
    return FileRecord(path, size, digest.hexdigest(), 0 if local is None else os.stat(local).st_mtime_ns)
